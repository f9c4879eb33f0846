#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loaders/mapped_file.h"

/// Zip archives whose entries are stored as they are, not compressed: what torch.save writes.
/// Format: PKWARE's APPNOTE.TXT, sections 4.3 (records) and 4.5.3 (zip64).
namespace duet::loaders {

struct ZipEntry {
  std::string name;
  std::uint64_t offset = 0;  ///< Of its first byte in the file.
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;  ///< 0: the writer computed none (torch.serialization.set_crc32_options(False)).
};

/// The entries in the order of the central directory. Every record, length and offset is checked: the directory fills
/// the place between the entries and the end record, each local header says what the directory says, no name stands
/// twice, no two entries share a byte. Throws Error(bad_file) naming file and entry; Error(unsupported) for compressed
/// and encrypted entries, archives in several parts, and more than 16,384 entries.
std::vector<ZipEntry> read_zip_directory(const MappedFile& file);

/// The content of an entry. Throws Error(bad_file) when its CRC-32 is not the directory's, or the file got shorter.
std::string read_zip_entry(const MappedFile& file, const ZipEntry& entry);

/// The same check without keeping the content.
void check_zip_entry(const MappedFile& file, const ZipEntry& entry);

}  // namespace duet::loaders
