#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "loaders/torch_file.h"

/// What the pickle of a torch.save file makes on its way, and the tree that is read from it in the end.
namespace duet::loaders {

enum class ObjectKind : std::uint8_t {
  none,
  boolean,
  integer,
  real,
  text,
  tuple,
  list,
  dict,
  ordered_dict,
  tensor,
  storage,
  global
};

std::string_view name_of(ObjectKind kind);  ///< "a text", "a dict".

/// Objects refer to each other by number: what a pickle shares or ties into rings costs nothing here.
using Handle = std::uint32_t;

struct Object {
  ObjectKind kind = ObjectKind::none;
  std::uint32_t made_at = 0;  ///< Byte of the pickle.
  std::int64_t integer = 0;   ///< A boolean or integer; the place of a tensor, storage or name in its table.
  double real = 0;
  std::string_view text;      ///< Lies in the pickle.
  std::vector<Handle> items;  ///< Of a dict: key, value, key, value.
};

bool is_dict(const Object& object);  ///< An OrderedDict is one too.

/// What the machine left behind.
struct Objects {
  std::vector<Object> all;
  std::vector<Tensor> tensors;
};

/// Copies `root` and what it refers to into a tree of values, each as often as it is referred to, within the bounds of
/// read_torch_file. `file` is for messages.
TorchValue tree_of(const MappedFile& file, const Objects& objects, Handle root);

}  // namespace duet::loaders
