#include "loaders/torch_objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <unordered_set>
#include <utility>

#include "duet/error.h"
#include "loaders/names.h"

namespace duet::loaders {

namespace {

constexpr std::size_t kMostValues = std::size_t{1} << 16;  // A shared object counts each time it stands in the tree.
constexpr std::size_t kMostText = std::size_t{16} << 20;   // Texts, keys and tensor names of the tree.
constexpr int kDeepest = 32;

/// Copies objects into a tree of values, each as often as it is referred to, within the bounds.
class TreeBuilder {
 public:
  TreeBuilder(const MappedFile& file, const Objects& objects) : file_(file), objects_(objects) {}

  TorchValue build(Handle handle, int depth = 0) {
    const Object& object = objects_.all[handle];
    if (depth > kDeepest) refuse_size(object, fmt::format("values nested more than {} deep", kDeepest));
    if (++values_ > kMostValues) refuse_size(object, fmt::format("more than {} values", kMostValues));
    TorchValue value;
    switch (object.kind) {
      case ObjectKind::none:
        break;
      case ObjectKind::boolean:
        value.data = object.integer != 0;
        break;
      case ObjectKind::integer:
        value.data = object.integer;
        break;
      case ObjectKind::real:
        value.data = object.real;
        break;
      case ObjectKind::text:
        value.data = kept(object, object.text);
        break;
      case ObjectKind::tuple:
      case ObjectKind::list:
        value.data = list_of(object, depth);
        break;
      case ObjectKind::dict:
      case ObjectKind::ordered_dict:
        value.data = dict_of(object, depth);
        break;
      case ObjectKind::tensor: {
        Tensor tensor = objects_.tensors[static_cast<std::size_t>(object.integer)];
        tensor.name = kept(object, path_);
        value.data = std::move(tensor);
        break;
      }
      case ObjectKind::storage:
      case ObjectKind::global:
        throw Error(Code::unsupported, fmt::format("{} as a value", place(object)));
    }
    return value;
  }

 private:
  TorchValue::List list_of(const Object& object, int depth) {
    TorchValue::List list;
    list.reserve(room_for(object.items.size()));
    for (std::size_t i = 0; i < object.items.size(); ++i) {
      const std::size_t before = enter(std::to_string(i));
      list.push_back(build(object.items[i], depth + 1));
      path_.resize(before);
    }
    return list;
  }

  TorchValue::Dict dict_of(const Object& object, int depth) {
    TorchValue::Dict dict;
    dict.reserve(room_for(object.items.size() / 2));
    std::unordered_set<std::string_view> keys;
    for (std::size_t i = 0; i < object.items.size(); i += 2) {
      const Object& key = objects_.all[object.items[i]];
      if (!keys.insert(key.text).second) {
        throw Error(Code::bad_file, fmt::format("{} in which key {} stands twice", place(object), quote(key.text)));
      }
      const std::size_t before = enter(key.text);
      TorchValue value = build(object.items[i + 1], depth + 1);
      path_.resize(before);
      dict.push_back({kept(key, key.text), std::move(value)});
    }
    return dict;
  }

  /// A container that does not fit the bound fails before it is filled: no room beyond the bound is needed.
  std::size_t room_for(std::size_t items) const { return std::min(items, kMostValues - values_); }

  /// Returns the length to go back to.
  std::size_t enter(std::string_view key) {
    const std::size_t before = path_.size();
    if (!path_.empty()) path_ += '.';
    path_ += key;
    return before;
  }

  std::string kept(const Object& object, std::string_view text) {
    text_bytes_ += text.size();
    if (text_bytes_ > kMostText) refuse_size(object, fmt::format("more than {} bytes of text", kMostText));
    return std::string(text);
  }

  std::string place(const Object& object) const {
    return fmt::format("{}: byte {} of data.pkl makes {}", quote(file_.name()), object.made_at, name_of(object.kind));
  }

  [[noreturn]] void refuse_size(const Object& object, const std::string& what) const {
    throw Error(Code::unsupported, fmt::format("{}; with it the file holds {}", place(object), what));
  }

  const MappedFile& file_;
  const Objects& objects_;
  std::string path_;  // Keys to where we are, joined by dots.
  std::size_t values_ = 0;
  std::size_t text_bytes_ = 0;
};

}  // namespace

std::string_view name_of(ObjectKind kind) {
  constexpr std::array<std::string_view, 12> kNames = {"None",           "a boolean", "an integer", "a real number",
                                                       "a text",         "a tuple",   "a list",     "a dict",
                                                       "an OrderedDict", "a tensor",  "a storage",  "a name"};
  return kNames.at(static_cast<std::size_t>(kind));
}

bool is_dict(const Object& object) {
  return object.kind == ObjectKind::dict || object.kind == ObjectKind::ordered_dict;
}

TorchValue tree_of(const MappedFile& file, const Objects& objects, Handle root) {
  return TreeBuilder(file, objects).build(root);
}

}  // namespace duet::loaders
