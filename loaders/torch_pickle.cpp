#include "loaders/torch_pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include "duet/error.h"
#include "engine/unicode.h"
#include "loaders/names.h"
#include "loaders/torch_objects.h"
#include "loaders/torch_opcodes.h"

namespace duet::loaders {

namespace {

constexpr std::size_t kMostObjects = std::size_t{1} << 18;  // The memo has as many places.
constexpr std::size_t kMostDimensions = 16;
constexpr std::size_t kLongestGlobal = 256;

/// The names a pickle may use. They stand for what this reader does itself; nothing is looked up anywhere.
enum class Role : std::uint8_t { ordered_dict, tensor, parameter, storage };

struct GlobalRow {
  std::string_view module;
  std::string_view name;
  Role role;
  Dtype dtype;  // Of a storage.
};

constexpr std::array<GlobalRow, 8> kGlobals = {{{"collections", "OrderedDict", Role::ordered_dict, {}},
                                                {"torch._utils", "_rebuild_tensor_v2", Role::tensor, {}},
                                                {"torch._utils", "_rebuild_parameter", Role::parameter, {}},
                                                {"torch", "FloatStorage", Role::storage, Dtype::f32},
                                                {"torch", "HalfStorage", Role::storage, Dtype::f16},
                                                {"torch", "BFloat16Storage", Role::storage, Dtype::bf16},
                                                {"torch", "DoubleStorage", Role::storage, Dtype::f64},
                                                {"torch", "LongStorage", Role::storage, Dtype::i64}}};

struct Storage {
  const ZipEntry* entry = nullptr;
  std::string_view key;
  Dtype dtype = Dtype::f32;
  std::int64_t elements = 0;
};

class Machine {
 public:
  Machine(const TorchArchive& archive, std::string_view program) : archive_(archive), program_(program) {}

  TorchValue run() {
    if (program_.empty() || program_.front() != '\x80') {
      throw Error(Code::bad_file, fmt::format("{}: data.pkl does not begin with the opcode PROTO at byte 0",
                                              quote(archive_.file->name())));
    }
    while (step()) {
    }
    const Handle result = pop();
    if (!stack_.empty() || !marks_.empty()) refuse(fmt::format("leaves {} values behind", stack_.size()));
    if (at_ != program_.size()) refuse(fmt::format("has {} bytes after it", program_.size() - at_));
    return tree_of(*archive_.file, objects_, result);
  }

 private:
  // Errors.

  /// "'head.pt': GLOBAL at byte 17 of data.pkl".
  std::string place() const {
    return fmt::format("{}: {} at byte {} of data.pkl", quote(archive_.file->name()),
                       name_of_opcode(static_cast<std::uint8_t>(program_[opcode_at_])), opcode_at_);
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Code::bad_file, fmt::format("{} {}", place(), what));
  }
  [[noreturn]] void refuse_unsupported(const std::string& what, std::string_view fix = {}) const {
    throw Error(Code::unsupported, fmt::format("{} {}", place(), what), fix);
  }

  // The program.

  std::string_view take(std::uint64_t count) {
    const std::size_t left = program_.size() - at_;
    if (count > left) refuse(fmt::format("needs {} bytes, and {} are left", count, left));
    const std::string_view bytes = program_.substr(at_, count);
    at_ += count;
    return bytes;
  }

  template <typename Number>
  Number take_number() {
    Number value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::string_view take_line() {
    const std::size_t end = program_.substr(at_, kLongestGlobal + 1).find('\n');
    if (end == std::string_view::npos) refuse(fmt::format("names something longer than {} bytes", kLongestGlobal));
    return take(end + 1).substr(0, end);
  }

  // The stack.

  /// Values under the last mark are out of reach.
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  Handle top() const {
    if (stack_.size() <= floor()) refuse("needs a value, and the stack has none");
    return stack_.back();
  }

  Handle pop() {
    const Handle handle = top();
    stack_.pop_back();
    return handle;
  }

  std::vector<Handle> pop_several(std::size_t count) {
    if (stack_.size() - floor() < count) refuse(fmt::format("needs {} values", count));
    std::vector<Handle> values(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return values;
  }

  std::vector<Handle> pop_to_mark() {
    if (marks_.empty()) refuse("needs a mark, and the stack has none");
    std::vector<Handle> values = pop_several(stack_.size() - floor());
    marks_.pop_back();
    return values;
  }

  Object& object(Handle handle) { return objects_.all[handle]; }

  Object& push(ObjectKind kind, std::int64_t integer = 0) {
    if (objects_.all.size() == kMostObjects)
      refuse_unsupported(fmt::format("makes more than {} objects", kMostObjects));
    stack_.push_back(static_cast<Handle>(objects_.all.size()));
    Object& made = objects_.all.emplace_back();
    made.kind = kind;
    made.made_at = static_cast<std::uint32_t>(opcode_at_);
    made.integer = integer;
    return made;
  }

  // Opcodes.

  /// One opcode; false after STOP.
  bool step() {
    if (at_ == program_.size()) refuse("is the last opcode; the pickle ends without STOP");
    opcode_at_ = at_;
    const auto code = static_cast<std::uint8_t>(program_[at_++]);
    switch (static_cast<Opcode>(code)) {
      case Opcode::proto:
        check_protocol();
        break;
      case Opcode::frame:
        if (take_number<std::uint64_t>() > program_.size() - at_) refuse("is longer than the pickle");
        break;
      case Opcode::stop:
        return false;
      case Opcode::mark:
        marks_.push_back(stack_.size());
        break;
      case Opcode::none:
        push(ObjectKind::none);
        break;
      case Opcode::newtrue:
        push(ObjectKind::boolean, 1);
        break;
      case Opcode::newfalse:
        push(ObjectKind::boolean, 0);
        break;
      case Opcode::binint:
        push(ObjectKind::integer, take_number<std::int32_t>());
        break;
      case Opcode::binint1:
        push(ObjectKind::integer, take_number<std::uint8_t>());
        break;
      case Opcode::binint2:
        push(ObjectKind::integer, take_number<std::uint16_t>());
        break;
      case Opcode::long1:
        push_long();
        break;
      case Opcode::binfloat:
        push_real();
        break;
      case Opcode::binunicode:
        push_text(take_number<std::uint32_t>());
        break;
      case Opcode::short_binunicode:
        push_text(take_number<std::uint8_t>());
        break;
      case Opcode::empty_dict:
        push(ObjectKind::dict);
        break;
      case Opcode::empty_list:
        push(ObjectKind::list);
        break;
      case Opcode::empty_tuple:
        push(ObjectKind::tuple);
        break;
      case Opcode::tuple1:
        push_tuple(pop_several(1));
        break;
      case Opcode::tuple2:
        push_tuple(pop_several(2));
        break;
      case Opcode::tuple3:
        push_tuple(pop_several(3));
        break;
      case Opcode::tuple:
        push_tuple(pop_to_mark());
        break;
      case Opcode::append:
        append(pop_several(1));
        break;
      case Opcode::appends:
        append(pop_to_mark());
        break;
      case Opcode::setitem:
        set_items(pop_several(2));
        break;
      case Opcode::setitems:
        set_items(pop_to_mark());
        break;
      case Opcode::binput:
        remember(take_number<std::uint8_t>());
        break;
      case Opcode::long_binput:
        remember(take_number<std::uint32_t>());
        break;
      case Opcode::memoize:
        remember(remembered_);
        break;
      case Opcode::binget:
        recall(take_number<std::uint8_t>());
        break;
      case Opcode::long_binget:
        recall(take_number<std::uint32_t>());
        break;
      case Opcode::global:
        push_global();
        break;
      case Opcode::binpersid:
        push_storage();
        break;
      case Opcode::reduce:
        reduce();
        break;
      case Opcode::build:
        build();
        break;
      default:
        refuse_opcode(code);
    }
    return true;
  }

  [[noreturn]] void refuse_opcode(std::uint8_t code) const {
    if (name_of_opcode(code).empty()) {
      throw Error(Code::bad_file, fmt::format("{}: byte {} of data.pkl, 0x{:02x}, is no opcode of a pickle",
                                              quote(archive_.file->name()), opcode_at_, code));
    }
    refuse_unsupported("is an opcode that is not read; nothing in the file was run",
                       "Save plain data and tensors, with the pickle protocol that torch.save takes by itself (2)");
  }

  void check_protocol() {
    const auto protocol = take_number<std::uint8_t>();
    if (opcode_at_ != 0) refuse("stands in the middle of the pickle");
    if (protocol < 2 || protocol > 4) refuse_unsupported(fmt::format("says protocol {}; 2 to 4 are read", protocol));
  }

  /// Little-endian two's complement of any length.
  void push_long() {
    const std::string_view bytes = take(take_number<std::uint8_t>());
    if (bytes.size() > sizeof(std::int64_t)) {
      refuse_unsupported(fmt::format("holds an integer of {} bytes; at most 8 are read", bytes.size()));
    }
    const bool negative = !bytes.empty() && static_cast<unsigned char>(bytes.back()) >= 0x80;
    std::int64_t value = negative ? -1 : 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    push(ObjectKind::integer, value);
  }

  /// The one number of a pickle that is big-endian.
  void push_real() {
    push(ObjectKind::real).real = std::bit_cast<double>(__builtin_bswap64(take_number<std::uint64_t>()));
  }

  void push_text(std::uint64_t bytes) {
    const std::string_view text = take(bytes);
    if (valid_utf8(text) != text) refuse("holds a text that is not UTF-8");
    push(ObjectKind::text).text = text;
  }

  void push_tuple(std::vector<Handle> items) { push(ObjectKind::tuple).items = std::move(items); }

  void append(const std::vector<Handle>& items) {
    Object& list = object(top());
    if (list.kind != ObjectKind::list) refuse(fmt::format("adds to {}, not to a list", name_of(list.kind)));
    list.items.insert(list.items.end(), items.begin(), items.end());
  }

  void set_items(const std::vector<Handle>& items) {
    Object& dict = object(top());
    if (!is_dict(dict)) refuse(fmt::format("sets a key of {}, not of a dict", name_of(dict.kind)));
    if (items.size() % 2 != 0) refuse("has a key without a value");
    for (std::size_t i = 0; i < items.size(); i += 2) {
      const Object& key = object(items[i]);
      if (key.kind == ObjectKind::text) continue;
      refuse_unsupported(fmt::format("sets a key that is {}; only texts are read as keys", name_of(key.kind)));
    }
    dict.items.insert(dict.items.end(), items.begin(), items.end());
  }

  void remember(std::size_t place_in_memo) {
    if (place_in_memo >= kMostObjects) {
      refuse_unsupported(fmt::format("uses memo entry {}; there are {}", place_in_memo, kMostObjects));
    }
    const Handle value = top();
    if (place_in_memo >= memo_.size()) memo_.resize(place_in_memo + 1);
    if (!memo_[place_in_memo]) ++remembered_;
    memo_[place_in_memo] = value;
  }

  void recall(std::size_t place_in_memo) {
    if (place_in_memo >= memo_.size() || !memo_[place_in_memo]) {
      refuse(fmt::format("takes memo entry {}, which was never set", place_in_memo));
    }
    stack_.push_back(*memo_[place_in_memo]);
  }

  void push_global() {
    const std::string_view module = take_line();
    const std::string_view name = take_line();
    const auto* row = std::find_if(kGlobals.begin(), kGlobals.end(),
                                   [&](const auto& one) { return one.module == module && one.name == name; });
    if (row == kGlobals.end()) {
      refuse_unsupported(fmt::format("names '{}.{}', which is not among what is read; nothing in the file was run",
                                     printable(module), printable(name)),
                         "Save plain data and tensors of float32, float16, bfloat16, float64 or int64 only");
    }
    push(ObjectKind::global, row - kGlobals.begin());
  }

  const GlobalRow* global_of(const Object& object) const {
    return object.kind == ObjectKind::global ? &kGlobals.at(static_cast<std::size_t>(object.integer)) : nullptr;
  }

  /// ('storage', class, key, device, elements): the bytes of entry `<prefix>/data/<key>`.
  void push_storage() {
    const Object& id = object(pop());
    const bool five = id.kind == ObjectKind::tuple && id.items.size() == 5;
    const auto part = [&](std::size_t i) -> const Object& { return object(id.items[i]); };
    const GlobalRow* global = five ? global_of(part(1)) : nullptr;
    if (!five || part(0).text != "storage" || global == nullptr || global->role != Role::storage ||
        part(2).kind != ObjectKind::text || part(3).kind != ObjectKind::text || part(4).kind != ObjectKind::integer) {
      refuse("should take ('storage', class, key, device, elements)");
    }
    Storage storage = {.key = part(2).text, .dtype = global->dtype, .elements = part(4).integer};
    const bool digits = storage.key.find_first_not_of("0123456789") == std::string_view::npos;
    if (storage.key.empty() || !digits) {
      refuse(fmt::format("takes storage {}; their keys are decimal numbers", quote(storage.key)));
    }
    storage.entry = checked_entry(storage.key);
    std::int64_t bytes = 0;
    if (storage.elements < 0 ||
        __builtin_mul_overflow(storage.elements, static_cast<std::int64_t>(size_of(storage.dtype)), &bytes) ||
        static_cast<std::uint64_t>(bytes) != storage.entry->bytes) {
      refuse(fmt::format("takes storage {} as {} elements of {}; its entry has {} bytes", quote(storage.key),
                         storage.elements, name_of(storage.dtype), storage.entry->bytes));
    }
    push(ObjectKind::storage, static_cast<std::int64_t>(storages_.size()));
    storages_.push_back(storage);
  }

  /// The entry of a storage, its checksum looked at once.
  const ZipEntry* checked_entry(std::string_view key) {
    const auto found = archive_.storages.find(key);
    if (found == archive_.storages.end()) {
      refuse(fmt::format("takes storage {}, and the archive has no entry 'data/{}'", quote(key), printable(key)));
    }
    if (checked_.insert(&found->second).second) check_zip_entry(*archive_.file, found->second);
    return &found->second;
  }

  void reduce() {
    const Object& arguments = object(pop());
    const Object& callee = object(pop());
    const GlobalRow* global = global_of(callee);
    if (global == nullptr) refuse(fmt::format("calls {}", name_of(callee.kind)));
    if (arguments.kind != ObjectKind::tuple)
      refuse(fmt::format("has arguments in {}, not a tuple", name_of(arguments.kind)));
    switch (global->role) {
      case Role::ordered_dict:
        if (!arguments.items.empty()) refuse_unsupported("makes an OrderedDict from arguments");
        push(ObjectKind::ordered_dict);
        return;
      case Role::tensor:
        return push_tensor(arguments);
      case Role::parameter:
        return push_parameter(arguments);
      case Role::storage:
        refuse_unsupported(fmt::format("calls '{}.{}'", global->module, global->name));
    }
  }

  /// _rebuild_tensor_v2(storage, storage_offset, size, stride, requires_grad, backward_hooks). A seventh argument would
  /// be attributes that change what the bytes mean (conjugated, negated).
  void push_tensor(const Object& arguments) {
    const auto part = [&](std::size_t i) -> const Object& { return object(arguments.items[i]); };
    if (arguments.items.size() == 7) refuse_unsupported("makes a tensor with attributes of its own");
    if (arguments.items.size() != 6 || part(0).kind != ObjectKind::storage || part(1).kind != ObjectKind::integer ||
        part(4).kind != ObjectKind::boolean) {
      refuse("should make a tensor of (storage, offset, size, stride, requires_grad, hooks)");
    }
    check_hooks(part(5));
    const Storage& storage = storages_[static_cast<std::size_t>(part(0).integer)];
    Tensor tensor;
    tensor.file = archive_.file;
    tensor.dtype = storage.dtype;
    tensor.shape = numbers_of(part(2), "size");
    const std::string what =
        fmt::format("makes a tensor {} of storage {}", shape_text(tensor.shape), quote(storage.key));
    std::int64_t bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
    for (const std::int64_t extent : tensor.shape) {
      if (__builtin_mul_overflow(tensor.elements, extent, &tensor.elements) ||
          __builtin_mul_overflow(bytes, extent, &bytes)) {
        refuse(what + ", which has more bytes than 64 bits can count");
      }
    }
    check_contiguous(tensor, numbers_of(part(3), "stride"), what);
    const std::int64_t first = part(1).integer;
    if (first < 0 || first > storage.elements || tensor.elements > storage.elements - first) {
      refuse(fmt::format("{} from element {} on; the storage has {}", what, first, storage.elements));
    }
    tensor.offset = storage.entry->offset + static_cast<std::uint64_t>(first) * size_of(tensor.dtype);
    tensor.bytes = static_cast<std::uint64_t>(bytes);
    push(ObjectKind::tensor, static_cast<std::int64_t>(objects_.tensors.size()));
    objects_.tensors.push_back(std::move(tensor));
  }

  /// _rebuild_parameter(tensor, requires_grad, backward_hooks) is the tensor.
  void push_parameter(const Object& arguments) {
    if (arguments.items.size() != 3 || object(arguments.items[0]).kind != ObjectKind::tensor ||
        object(arguments.items[1]).kind != ObjectKind::boolean) {
      refuse("should make a parameter of (tensor, requires_grad, hooks)");
    }
    check_hooks(object(arguments.items[2]));
    stack_.push_back(arguments.items[0]);
  }

  void check_hooks(const Object& hooks) const {
    if (!is_dict(hooks) || !hooks.items.empty()) refuse("should have an empty dict of hooks");
  }

  std::vector<std::int64_t> numbers_of(const Object& tuple, std::string_view what) {
    if (tuple.kind != ObjectKind::tuple) refuse(fmt::format("has a {} that is {}", what, name_of(tuple.kind)));
    if (tuple.items.size() > kMostDimensions) {
      refuse_unsupported(
          fmt::format("has a {} of {} dimensions; at most {} are read", what, tuple.items.size(), kMostDimensions));
    }
    std::vector<std::int64_t> numbers;
    for (const Handle item : tuple.items) {
      const Object& number = object(item);
      if (number.kind != ObjectKind::integer || number.integer < 0) {
        refuse(fmt::format("has a {} that holds {}; whole numbers from 0 were expected", what,
                           number.kind == ObjectKind::integer ? std::to_string(number.integer) : name_of(number.kind)));
      }
      numbers.push_back(number.integer);
    }
    return numbers;
  }

  /// The step of a dimension of extent 1 means nothing, and an empty tensor has no elements to lie anywhere.
  void check_contiguous(const Tensor& tensor, const std::vector<std::int64_t>& strides, const std::string& what) const {
    if (strides.size() != tensor.shape.size()) {
      refuse(fmt::format("{} with {} strides", what, strides.size()));
    }
    std::int64_t expected = 1;
    for (std::size_t i = strides.size(); i-- > 0 && tensor.elements > 0;) {
      if (tensor.shape[i] != 1 && strides[i] != expected) {
        refuse_unsupported(fmt::format("{} with strides {}: it is not contiguous", what, shape_text(strides)),
                           "Save tensor.contiguous() instead of a transposed, sliced or expanded tensor");
      }
      expected *= tensor.shape[i];
    }
  }

  /// Sets attributes. The one that state dicts have is `_metadata`, versions of torch modules, of no use here.
  void build() {
    const Object& state = object(pop());
    const Object& target = object(top());
    const bool metadata = state.kind == ObjectKind::dict && state.items.size() == 2 &&
                          object(state.items[0]).text == "_metadata" && is_dict(object(state.items[1]));
    if (target.kind == ObjectKind::ordered_dict && metadata) return;
    refuse_unsupported(
        fmt::format("sets attributes of {}; only _metadata of an OrderedDict is known", name_of(target.kind)));
  }

  const TorchArchive& archive_;
  std::string_view program_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  Objects objects_;
  std::vector<Storage> storages_;
  std::unordered_set<const ZipEntry*> checked_;
  std::vector<Handle> stack_;
  std::vector<std::size_t> marks_;  // Heights of the stack.
  std::vector<std::optional<Handle>> memo_;
  std::size_t remembered_ = 0;
};

}  // namespace

TorchValue read_torch_pickle(const TorchArchive& archive, std::string_view program) {
  return Machine(archive, program).run();
}

}  // namespace duet::loaders
