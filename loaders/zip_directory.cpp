#include "loaders/zip_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "duet/error.h"
#include "loaders/names.h"

namespace duet::loaders {

namespace {

constexpr std::uint32_t kLocalSignature = 0x04034b50;
constexpr std::uint32_t kCentralSignature = 0x02014b50;
constexpr std::uint32_t kEndSignature = 0x06054b50;
constexpr std::uint32_t kZip64EndSignature = 0x06064b50;
constexpr std::uint32_t kZip64LocatorSignature = 0x07064b50;
constexpr std::size_t kLocalBytes = 30;  // Of each record without names, extra fields and comments.
constexpr std::size_t kCentralBytes = 46;
constexpr std::size_t kEndBytes = 22;
constexpr std::size_t kZip64EndBytes = 56;
constexpr std::size_t kZip64LocatorBytes = 20;
constexpr std::uint16_t kZip64Extra = 1;
constexpr std::uint16_t kEncrypted = 1U << 0 | 1U << 6 | 1U << 13;  // Plainly, strongly, or the directory itself.
constexpr std::uint16_t kSizesFollow = 1U << 3;  // The local header was written before the sizes were known.
constexpr std::uint32_t kInZip64 = 0xFFFFFFFF;   // Stands for a number that is in the zip64 extra field.
constexpr std::uint64_t kMostEntries = 16'384;
constexpr std::size_t kChunk = 32'768;

[[noreturn]] void refuse(const std::string& what, std::string_view fix = {}) { throw Error(Code::bad_file, what, fix); }

/// The records of one archive, read by position. Reading past the end of `bytes` is refused.
class Record {
 public:
  Record(const MappedFile& file, std::span<const std::byte> bytes) : file_(&file), bytes_(bytes) {}

  std::uint16_t u16(std::size_t at) const { return number<std::uint16_t>(at); }
  std::uint32_t u32(std::size_t at) const { return number<std::uint32_t>(at); }
  std::uint64_t u64(std::size_t at) const { return number<std::uint64_t>(at); }
  std::size_t size() const { return bytes_.size(); }

  Record part(std::size_t at, std::size_t count) const {
    if (at > bytes_.size() || count > bytes_.size() - at) {
      refuse(fmt::format("{}: a record of the zip directory needs {} bytes, and {} are left", quote(file_->name()),
                         count, bytes_.size() - std::min(at, bytes_.size())));
    }
    return {*file_, bytes_.subspan(at, count)};
  }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  template <typename Number>
  Number number(std::size_t at) const {
    Number value = 0;
    std::memcpy(&value, part(at, sizeof value).bytes_.data(), sizeof value);
    return value;
  }

  const MappedFile* file_;
  std::span<const std::byte> bytes_;
};

/// Where the central directory lies, and where the end records behind it begin.
struct Directory {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;
  std::uint64_t end = 0;
};

/// `plain`, or what the zip64 end record before it says when there is one. torch writes both always; where the plain
/// record has room for a number, the two must agree.
Directory read_zip64_end(const MappedFile& file, const Directory& plain) {
  constexpr std::uint64_t kBoth = kZip64EndBytes + kZip64LocatorBytes;
  if (plain.end < kBoth) return plain;
  std::array<std::byte, kBoth> bytes{};
  file.read(plain.end - kBoth, bytes);
  const Record record(file, std::span(bytes).first(kZip64EndBytes));
  const Record locator(file, std::span(bytes).last(kZip64LocatorBytes));
  if (locator.u32(0) != kZip64LocatorSignature) return plain;
  if (locator.u64(8) != plain.end - kBoth || record.u32(0) != kZip64EndSignature ||
      record.u64(4) != kZip64EndBytes - 12) {
    refuse(fmt::format("{}: the zip64 end record is not the {} bytes before its locator", quote(file.name()),
                       kZip64EndBytes));
  }
  const Directory wide = {
      .offset = record.u64(48), .bytes = record.u64(40), .entries = record.u64(32), .end = plain.end - kBoth};
  const bool one_part = locator.u32(4) == 0 && locator.u32(16) <= 1 && record.u32(16) == 0 && record.u32(20) == 0;
  const auto agrees = [](std::uint64_t number, std::uint64_t wider, std::uint64_t full) {
    return number == wider || number == full;
  };
  if (!one_part || record.u64(24) != wide.entries || !agrees(plain.entries, wide.entries, 0xFFFF) ||
      !agrees(plain.bytes, wide.bytes, kInZip64) || !agrees(plain.offset, wide.offset, kInZip64)) {
    refuse(fmt::format("{}: the two end records of the zip archive contradict each other", quote(file.name())));
  }
  return wide;
}

Directory find_directory(const MappedFile& file) {
  const std::string name = quote(file.name());
  if (file.size() < kEndBytes) {
    refuse(fmt::format("{} has {} bytes; a zip archive ends with a record of {}", name, file.size(), kEndBytes),
           "Download not complete?");
  }
  const std::uint64_t end = file.size() - kEndBytes;
  std::array<std::byte, kEndBytes> bytes{};
  file.read(end, bytes);
  const Record record(file, bytes);
  if (record.u32(0) != kEndSignature || record.u16(20) != 0) {
    refuse(fmt::format("{} does not end with the end record of a zip archive", name), "Download not complete?");
  }
  const Directory plain = {.offset = record.u32(16), .bytes = record.u32(12), .entries = record.u16(10), .end = end};
  if (record.u16(4) != 0 || record.u16(6) != 0 || record.u16(8) != plain.entries) {
    throw Error(Code::unsupported, fmt::format("{} is one part of a zip archive in several", name));
  }
  const Directory directory = read_zip64_end(file, plain);
  if (directory.offset > directory.end || directory.bytes != directory.end - directory.offset) {
    refuse(fmt::format("{}: the zip directory has {} bytes at {}; it should end where its end record begins, at {}",
                       name, directory.bytes, directory.offset, directory.end));
  }
  if (directory.entries > kMostEntries) {
    throw Error(Code::unsupported, fmt::format("{} is a zip archive of {} entries; at most {} are read", name,
                                               directory.entries, kMostEntries));
  }
  return directory;
}

std::string where(const MappedFile& file, std::string_view entry) {
  return fmt::format("{}: zip entry {}", quote(file.name()), quote(entry));
}

void check_storage(std::uint16_t flags, std::uint16_t method, const std::string& place) {
  if ((flags & kEncrypted) != 0) throw Error(Code::unsupported, fmt::format("{} is encrypted", place));
  if (method != 0) {
    throw Error(Code::unsupported,
                fmt::format("{} is compressed ({}); only stored entries are read", place,
                            method == 8 ? "deflate" : fmt::format("method {}", method)),
                "Write the file again with torch.save, which compresses nothing");
  }
}

/// The numbers of a central record that may have moved into its zip64 extra field.
struct WideNumbers {
  std::uint64_t bytes = 0;
  std::uint64_t compressed_bytes = 0;
  std::uint64_t header_offset = 0;
};

/// The extra field holds only the numbers whose plain field is full, in this order.
void widen(WideNumbers& numbers, const Record& extra, const std::string& place) {
  std::array<std::uint64_t*, 3> missing = {&numbers.bytes, &numbers.compressed_bytes, &numbers.header_offset};
  auto* const last = std::remove_if(missing.begin(), missing.end(), [](auto* number) { return *number != kInZip64; });
  if (last == missing.begin()) return;
  for (std::size_t at = 0; at < extra.size();) {
    const Record field = extra.part(at + 4, extra.u16(at + 2));
    if (extra.u16(at) == kZip64Extra) {
      std::size_t from = 0;
      for (auto* number = missing.begin(); number != last; ++number, from += 8) **number = field.u64(from);
      return;
    }
    at += 4 + field.size();
  }
  refuse(fmt::format("{} has no zip64 field for the numbers that need one", place));
}

/// The entry and where its local header begins.
struct Placed {
  ZipEntry entry;
  std::uint64_t begin = 0;
};

/// What the central directory says about an entry, and how many bytes it took to say it.
Placed parse_central(const MappedFile& file, const Record& rest, std::size_t& taken) {
  const Record head = rest.part(0, kCentralBytes);
  if (head.u32(0) != kCentralSignature) {
    refuse(fmt::format("{}: the zip directory holds something that is no entry", quote(file.name())));
  }
  const std::size_t name_bytes = head.u16(28);
  const std::size_t extra_bytes = head.u16(30);
  const std::size_t comment_bytes = head.u16(32);
  taken = rest.part(0, kCentralBytes + name_bytes + extra_bytes + comment_bytes).size();
  Placed placed;
  placed.entry.name = rest.part(kCentralBytes, name_bytes).text();
  const std::string place = where(file, placed.entry.name);
  check_storage(head.u16(8), head.u16(10), place);
  WideNumbers numbers = {.bytes = head.u32(24), .compressed_bytes = head.u32(20), .header_offset = head.u32(42)};
  widen(numbers, rest.part(kCentralBytes + name_bytes, extra_bytes), place);
  if (head.u16(34) != 0) refuse(fmt::format("{} lies in another part of the archive", place));
  if (numbers.bytes != numbers.compressed_bytes) {
    refuse(fmt::format("{} is stored, and yet has {} bytes in {}", place, numbers.bytes, numbers.compressed_bytes));
  }
  placed.entry.bytes = numbers.bytes;
  placed.entry.crc32 = head.u32(16);
  placed.begin = numbers.header_offset;
  return placed;
}

/// Finds the content behind the local header, which must not contradict the directory: readers that believe the one or
/// the other should see the same file.
void locate(const MappedFile& file, const Directory& directory, Placed& placed) {
  const ZipEntry& entry = placed.entry;
  const std::string place = where(file, entry.name);
  const auto inside = [&](std::uint64_t at, std::uint64_t count) {
    return at <= directory.offset && count <= directory.offset - at;
  };
  if (!inside(placed.begin, kLocalBytes + entry.name.size())) {
    refuse(
        fmt::format("{} begins at {}, outside of the entries, which end at {}", place, placed.begin, directory.offset));
  }
  std::vector<std::byte> bytes(kLocalBytes + entry.name.size());
  file.read(placed.begin, bytes);
  const Record header(file, bytes);
  if (header.u32(0) != kLocalSignature || header.u16(26) != entry.name.size() ||
      header.part(kLocalBytes, entry.name.size()).text() != entry.name) {
    refuse(fmt::format("{}: at {} there is no header of this name", place, placed.begin));
  }
  check_storage(header.u16(6), header.u16(8), place);
  for (const std::size_t at : {18U, 22U}) {
    const std::uint32_t size = header.u32(at);
    const bool later = (header.u16(6) & kSizesFollow) != 0 && size == 0;
    if (!later && size != kInZip64 && size != entry.bytes) {
      refuse(fmt::format("{} has {} bytes in the directory and {} in its own header", place, entry.bytes, size));
    }
  }
  const std::uint64_t offset = placed.begin + bytes.size() + header.u16(28);
  if (!inside(offset, entry.bytes)) {
    refuse(fmt::format("{} has {} bytes at {}, more than there are before the directory at {}", place, entry.bytes,
                       offset, directory.offset));
  }
  placed.entry.offset = offset;
}

void check_names(const MappedFile& file, const std::vector<Placed>& entries) {
  std::unordered_set<std::string_view> names;
  for (const Placed& placed : entries) {
    if (!names.insert(placed.entry.name).second) refuse(where(file, placed.entry.name) + " stands twice");
  }
}

void check_overlaps(const MappedFile& file, const std::vector<Placed>& entries) {
  std::vector<const Placed*> order;
  order.reserve(entries.size());
  for (const Placed& placed : entries) order.push_back(&placed);
  std::sort(order.begin(), order.end(), [](const Placed* a, const Placed* b) { return a->begin < b->begin; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const ZipEntry& before = order[i - 1]->entry;
    if (order[i]->begin < before.offset + before.bytes) {
      refuse(fmt::format("{} begins inside entry {}", where(file, order[i]->entry.name), quote(before.name)));
    }
  }
}

// ---- CRC-32, as in zip and PNG: polynomial 0x04C11DB7, bits reversed ----

constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value & 1) != 0 ? 0xEDB88320 ^ (value >> 1) : value >> 1;
    table[i] = value;
  }
  return table;
}();

class Crc32 {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      state_ = kCrcTable[(state_ ^ std::to_integer<std::uint32_t>(byte)) & 0xFF] ^ (state_ >> 8);
    }
  }
  void check(const MappedFile& file, const ZipEntry& entry) const {
    if (entry.crc32 == 0 || ~state_ == entry.crc32) return;
    refuse(fmt::format("{} is damaged: its CRC-32 is {:08x}, and the directory says {:08x}", where(file, entry.name),
                       ~state_, entry.crc32),
           "Download the file again");
  }

 private:
  std::uint32_t state_ = 0xFFFFFFFF;
};

}  // namespace

std::vector<ZipEntry> read_zip_directory(const MappedFile& file) {
  const Directory directory = find_directory(file);
  std::vector<std::byte> bytes(directory.bytes);
  file.read(directory.offset, bytes);
  const Record all(file, bytes);
  std::vector<Placed> placed;
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    std::size_t taken = 0;
    placed.push_back(parse_central(file, all.part(at, all.size() - at), taken));
    locate(file, directory, placed.back());
    at += taken;
  }
  if (at != all.size()) {
    refuse(fmt::format("{}: the zip directory has {} bytes after its {} entries", quote(file.name()), all.size() - at,
                       directory.entries));
  }
  check_names(file, placed);
  check_overlaps(file, placed);
  std::vector<ZipEntry> entries;
  entries.reserve(placed.size());
  for (Placed& one : placed) entries.push_back(std::move(one.entry));
  return entries;
}

std::string read_zip_entry(const MappedFile& file, const ZipEntry& entry) {
  std::string content(entry.bytes, '\0');
  file.read(entry.offset, std::as_writable_bytes(std::span(content)));
  Crc32 crc;
  crc.add(std::as_bytes(std::span(content)));
  crc.check(file, entry);
  return content;
}

void check_zip_entry(const MappedFile& file, const ZipEntry& entry) {
  Crc32 crc;
  std::array<std::byte, kChunk> chunk;
  for (std::uint64_t at = 0; at < entry.bytes;) {
    const std::span part = std::span(chunk).first(std::min<std::uint64_t>(chunk.size(), entry.bytes - at));
    file.read(entry.offset + at, part);
    crc.add(part);
    at += part.size();
  }
  crc.check(file, entry);
}

}  // namespace duet::loaders
