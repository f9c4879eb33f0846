#include "loaders/packed_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "duet/error.h"
#include "engine/quant_blocks.h"
#include "loaders/checkpoint.h"
#include "loaders/checksum.h"
#include "loaders/file_writer.h"
#include "loaders/mapped_file.h"
#include "loaders/names.h"
#include "loaders/packed_header.h"
#include "loaders/quantise.h"
#include "loaders/storage_choice.h"

namespace duet::loaders {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kCopyBytes = std::size_t{4} << 20;

std::uint64_t aligned(std::uint64_t offset) {
  return (offset + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
}

/// Lays texts and regions out behind a directory of `directory_bytes`; returns the length of the file.
std::uint64_t place(PackedDirectory& directory, std::uint64_t directory_bytes) {
  std::uint64_t end = kPrologueBytes + directory_bytes;
  const auto put = [&end](PackedExtent& extent) {
    extent.offset = aligned(end);
    end = extent.offset + extent.bytes;
  };
  for (PackedText& text : directory.texts) put(text.extent);
  for (PackedExtent& extent : directory.extents) put(extent);
  return end;
}

/// Offsets are written as decimal numbers, so the directory's length and they depend on each other: lay out until the
/// length stands still, padding a directory that came out shorter.
std::string settle(PackedDirectory& directory, std::uint64_t& file_bytes) {
  std::string json = to_json(directory);
  for (std::uint64_t bytes = json.size();; bytes = json.size()) {
    file_bytes = place(directory, bytes);
    json = to_json(directory);
    if (json.size() > bytes) continue;
    json.resize(bytes, ' ');
    return json;
  }
}

// ---- an opened file ----

struct OpenedFile {
  explicit OpenedFile(const fs::path& path) : file(path) {
    std::array<std::byte, kPrologueBytes> first{};
    const std::size_t there = std::min<std::uint64_t>(first.size(), file.size());
    file.read(0, std::span(first).first(there));
    const PackedPrologue prologue = decode_prologue(std::span(first).first(there), file.name());
    if (prologue.file_bytes != file.size())
      throw Error(
          Code::bad_file,
          fmt::format("{} is {} bytes long; its header says {}", quote(file.name()), file.size(), prologue.file_bytes),
          "Download or copy not complete?");
    if (prologue.directory_bytes > kLargestDirectory || prologue.directory_bytes > file.size() - kPrologueBytes)
      throw Error(Code::bad_file, fmt::format("{} has a directory of {} bytes, more than the file or the limit of {}",
                                              quote(file.name()), prologue.directory_bytes, kLargestDirectory));
    std::string json(prologue.directory_bytes, '\0');
    file.read(kPrologueBytes, std::as_writable_bytes(std::span(json)));
    if (checksum_of(std::as_bytes(std::span(json))) != prologue.directory_checksum)
      throw Error(Code::bad_file, fmt::format("The directory of {} does not match its checksum", quote(file.name())),
                  "Copy or pack the file again");
    directory_checksum = prologue.directory_checksum;
    directory = parse_directory(json, file.name(), kPrologueBytes + prologue.directory_bytes, file.size());
  }

  /// Copies a piece and proves it against its checksum.
  void read(const PackedExtent& extent, std::string_view piece, std::span<std::byte> destination) const {
    Checksum sum;
    for (std::size_t done = 0; done < destination.size(); done += kCopyBytes) {
      const std::span<std::byte> part = destination.subspan(done, std::min(kCopyBytes, destination.size() - done));
      file.read(extent.offset + done, part);
      sum.add(part);
    }
    prove(sum, extent, piece);
  }

  void stream(const PackedExtent& extent, std::string_view piece, StoredSink& sink) const {
    Checksum sum;
    for (std::size_t done = 0; done < extent.bytes;) {
      std::span<std::byte> part = sink.room(done);
      part = part.first(std::min<std::size_t>(part.size(), extent.bytes - done));
      file.read(extent.offset + done, part);
      sum.add(part);
      sink.filled(part.size());
      done += part.size();
    }
    prove(sum, extent, piece);
  }

  void prove(const Checksum& sum, const PackedExtent& extent, std::string_view piece) const {
    if (sum.value() != extent.checksum)
      throw Error(Code::bad_file,
                  fmt::format("{}: the bytes of {} sum to {}; the directory says {}", quote(file.name()), quote(piece),
                              hex_of(sum.value()), hex_of(extent.checksum)),
                  "The file is damaged: copy or pack it again");
  }

  MappedFile file;
  PackedDirectory directory;
  std::uint64_t directory_checksum = 0;
};

class PackedCheckpoint final : public WeightSource {
 public:
  PackedCheckpoint(const fs::path& path, const WeightOptions& options) : opened_(path) {
    check_options(options);
    tensors_ = opened_.directory.tensors;
    for (WeightTensor& tensor : tensors_) {
      const std::string place = fmt::format("{}: {}", quote(name()), tensor.row.name);
      tensor.storage = chosen_storage(tensor.row, tensor.storage, options, place);
      tensor.bytes = layout_of(tensor.row.rows, tensor.row.columns, tensor.storage).bytes;
    }
    report_.push_back(fmt::format("{} tensors, packed", tensors_.size()));
    note_ignored_options(options, spec().tied_head, report_);
    identify(path);
  }

  const ModelSpec& spec() const override { return opened_.directory.spec; }
  const std::string& name() const override { return opened_.file.name(); }
  const std::string& identity() const override { return identity_; }
  const std::vector<WeightTensor>& tensors() const override { return tensors_; }
  const std::vector<std::string>& report() const override { return report_; }

  void read(std::size_t index, std::span<std::byte> region) const override {
    const WeightTensor& wanted = tensors_.at(index);
    const WeightTensor& held = opened_.directory.tensors.at(index);
    const PackedExtent& extent = opened_.directory.extents.at(index);
    if (region.size() != wanted.bytes)
      throw Error(Code::internal, fmt::format("{} was given a region of {} bytes and has {}", quote(wanted.row.name),
                                              region.size(), wanted.bytes));
    if (wanted.storage == held.storage) return opened_.read(extent, held.row.name, region);
    std::vector<std::byte> stored(held.bytes);
    opened_.read(extent, held.row.name, stored);
    const Matrix matrix = view_of(held.row.rows, held.row.columns, held.storage, stored.data());
    store_matrix([&](std::int64_t first, std::span<float> values) { dequantise(matrix, first, values); }, held.row.rows,
                 held.row.columns, wanted.storage, region, fmt::format("{}: {}", quote(name()), wanted.row.name));
  }

  std::optional<StorageSpec> stored(std::size_t index) const override {
    return opened_.directory.tensors.at(index).storage;
  }

  void stream(std::size_t index, StoredSink& sink) const override {
    opened_.stream(opened_.directory.extents.at(index), opened_.directory.tensors.at(index).row.name, sink);
  }

 private:
  void identify(const fs::path& path) {
    const MappedFile& file = opened_.file;
    const std::string text =
        fmt::format("{}{} {}:{} {} {}", describe_weights(spec(), tensors_), opened_.directory_checksum, file.device(),
                    file.inode(), file.size(), file.modified_nanoseconds());
    identity_ =
        fmt::format("{}#{}", fs::weakly_canonical(path).string(), hex_of(checksum_of(std::as_bytes(std::span(text)))));
  }

  OpenedFile opened_;
  std::vector<WeightTensor> tensors_;
  std::vector<std::string> report_;
  std::string identity_;
};

}  // namespace

// ---- writing ----

void write_packed_file(const fs::path& path, const WeightSource& source, const TextFiles& texts,
                       const Progress& progress) {
  PackedDirectory directory;
  directory.spec = source.spec();
  directory.tensors = source.tensors();
  for (const WeightTensor& tensor : source.tensors()) directory.extents.push_back({0, tensor.bytes, 0});
  for (const auto& [name, content] : texts)
    directory.texts.push_back({name, {0, content.size(), checksum_of(std::as_bytes(std::span(content)))}});
  std::uint64_t file_bytes = 0;
  const std::size_t directory_bytes = settle(directory, file_bytes).size();

  FileWriter file(path);
  for (std::size_t i = 0; i < texts.size(); ++i)
    file.write(directory.texts[i].extent.offset, std::as_bytes(std::span(texts[i].second)));
  std::vector<std::byte> region;
  for (std::size_t i = 0; i < directory.extents.size(); ++i) {
    PackedExtent& extent = directory.extents[i];
    region.resize(extent.bytes);
    source.read(i, region);
    extent.checksum = checksum_of(region);
    file.write(extent.offset, region);
    if (progress) progress(extent.offset + extent.bytes, file_bytes);
  }
  // The header last: until then the file does not begin like a packed one.
  std::string json = to_json(directory);
  json.resize(directory_bytes, ' ');
  file.write(kPrologueBytes, std::as_bytes(std::span(json)));
  file.write(0, encode({directory_bytes, checksum_of(std::as_bytes(std::span(json))), file_bytes}));
  file.finish();
}

// ---- reading ----

bool is_packed_file(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;
  std::ifstream in(path, std::ios::binary);
  std::array<char, 8> first{};
  in.read(first.data(), first.size());
  return in.gcount() == 8 && has_packed_magic(std::as_bytes(std::span(first)));
}

std::shared_ptr<const WeightSource> open_packed_file(const fs::path& path, const WeightOptions& options) {
  return std::make_shared<PackedCheckpoint>(path, options);
}

std::optional<std::string> read_packed_text(const fs::path& path, std::string_view name) {
  const OpenedFile opened(path);
  for (const PackedText& text : opened.directory.texts) {
    if (text.name != name) continue;
    std::string content(text.extent.bytes, '\0');
    opened.read(text.extent, text.name, std::as_writable_bytes(std::span(content)));
    return content;
  }
  return std::nullopt;
}

}  // namespace duet::loaders
