#include "loaders/torch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>

#include "duet/error.h"
#include "loaders/names.h"
#include "loaders/torch_pickle.h"
#include "loaders/zip_directory.h"

namespace duet::loaders {

namespace {

constexpr std::uint64_t kLargestFile = std::uint64_t{64} << 20;
constexpr std::uint64_t kLargestPickle = std::uint64_t{4} << 20;
constexpr std::uint64_t kLongestByteOrder = 16;
constexpr std::string_view kPickleName = "/data.pkl";

[[noreturn]] void refuse(const std::string& what, std::string_view fix = {}) { throw Error(Code::bad_file, what, fix); }

/// Files that are taken for one of torch.save, recognised by how they begin.
void check_beginning(const MappedFile& file) {
  using namespace std::string_view_literals;
  std::array<char, 32> bytes{};
  const std::size_t count = std::min<std::uint64_t>(bytes.size(), file.size());
  file.read(0, std::as_writable_bytes(std::span(bytes).first(count)));
  const std::string_view head(bytes.data(), count);
  if (head.starts_with("version https://git-lfs"sv)) {
    refuse(
        fmt::format("{} is a Git LFS pointer of {} bytes, not the file it stands for", quote(file.name()), file.size()),
        "Download the file itself (git lfs pull)");
  }
  if (head.starts_with("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20"sv)) {  // torch's magic number, pickled first.
    throw Error(Code::unsupported, fmt::format("{} has the form of torch.save before PyTorch 1.6", quote(file.name())),
                "Load it and save it again with a newer PyTorch");
  }
  if (!head.starts_with("PK"sv)) {
    refuse(fmt::format("{} does not begin as a zip archive", quote(file.name())), "Is this a file of torch.save?");
  }
}

/// What stands before "/data.pkl" in the name of the pickle.
std::string find_prefix(const MappedFile& file, const std::vector<ZipEntry>& entries) {
  std::optional<std::string> prefix;
  for (const ZipEntry& entry : entries) {
    if (!entry.name.ends_with(kPickleName)) continue;
    const std::string folder = entry.name.substr(0, entry.name.size() - kPickleName.size());
    if (folder.empty() || folder.find('/') != std::string::npos) continue;
    if (prefix) {
      refuse(fmt::format("{} holds {} and {}; a file of torch.save holds one pickle", quote(file.name()),
                         quote(*prefix + std::string(kPickleName)), quote(entry.name)));
    }
    prefix = folder;
  }
  if (!prefix) {
    refuse(fmt::format("{} is a zip archive without an entry '<prefix>/data.pkl'", quote(file.name())),
           "Is this a file of torch.save?");
  }
  return *prefix;
}

/// torch before 2.1 wrote no byte order, and knew little-endian machines only.
void check_byte_order(const MappedFile& file, const ZipEntry& entry) {
  const std::string order = entry.bytes <= kLongestByteOrder ? read_zip_entry(file, entry) : "";
  if (order == "little") return;
  throw Error(Code::unsupported,
              fmt::format("{}: {} says {}; only 'little' is read", quote(file.name()), quote(entry.name), quote(order)),
              "Save it on a little-endian machine");
}

}  // namespace

const TorchValue* TorchValue::find(std::string_view key) const {
  const Dict* items = std::get_if<Dict>(&data);
  if (items == nullptr) return nullptr;
  const auto found =
      std::find_if(items->begin(), items->end(), [key](const TorchItem& item) { return item.key == key; });
  return found == items->end() ? nullptr : &found->value;
}

std::string_view name_of(TorchValue::Kind kind) {
  constexpr std::array<std::string_view, 8> kNames = {"none", "a boolean", "an integer", "a real number",
                                                      "text", "a list",    "a dict",     "a tensor"};
  return kNames.at(static_cast<std::size_t>(kind));
}

TorchValue read_torch_file(const std::filesystem::path& path) {
  const auto file = std::make_shared<const MappedFile>(path);
  if (file->size() > kLargestFile) {
    throw Error(Code::unsupported, fmt::format("{} has {} bytes; at most {} are read of a file of torch.save",
                                               quote(file->name()), file->size(), kLargestFile));
  }
  check_beginning(*file);
  const std::vector<ZipEntry> entries = read_zip_directory(*file);
  const std::string prefix = find_prefix(*file, entries);
  const std::string storages = prefix + "/data/";
  TorchArchive archive = {.file = file, .storages = {}};
  const ZipEntry* pickle = nullptr;
  for (const ZipEntry& entry : entries) {
    if (entry.name == prefix + "/byteorder") check_byte_order(*file, entry);
    if (entry.name == prefix + std::string(kPickleName)) pickle = &entry;
    if (entry.name.starts_with(storages)) archive.storages.emplace(entry.name.substr(storages.size()), entry);
  }
  if (pickle->bytes > kLargestPickle) {
    throw Error(Code::unsupported, fmt::format("{}: {} has {} bytes; at most {} are read", quote(file->name()),
                                               quote(pickle->name), pickle->bytes, kLargestPickle));
  }
  return read_torch_pickle(archive, read_zip_entry(*file, *pickle));
}

std::vector<float> to_floats(const Tensor& tensor) {
  if (!is_float(tensor.dtype)) {
    throw Error(Code::unsupported,
                fmt::format("{} holds {}; floats were expected", where(tensor), name_of(tensor.dtype)));
  }
  std::vector<float> values(static_cast<std::size_t>(tensor.elements));
  read_floats(tensor, 0, values);
  return values;
}

}  // namespace duet::loaders
