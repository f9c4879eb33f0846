#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

/// Files of torch.save, built byte by byte so that tests can bend every one of them.
namespace duet::test {

/// Appends the low `bytes` bytes of `value`, the lowest first.
inline void append_number(std::string& text, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xFF);
}

struct ZipPart {
  std::string name;
  std::string content;
};

struct ZipForm {
  bool wide_entries = false;  ///< Sizes and offsets stand in the zip64 extra field of the directory.
  bool wide_end = false;      ///< The numbers of the end record stand in the zip64 end record.
};

/// The parts stored, without checksums.
inline std::string zip_bytes(const std::vector<ZipPart>& parts, const ZipForm& form = {}) {
  const auto sizes = [&](std::string& text, std::size_t size) {
    append_number(text, form.wide_entries ? 0xFFFFFFFF : size, 4);
    append_number(text, form.wide_entries ? 0xFFFFFFFF : size, 4);
  };
  std::string file;
  std::string directory;
  for (const ZipPart& part : parts) {
    const std::size_t begin = file.size();
    file += std::string_view("PK\x03\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 18);
    sizes(file, part.content.size());
    append_number(file, part.name.size(), 2);
    append_number(file, form.wide_entries ? 20 : 0, 2);
    file += part.name;
    if (form.wide_entries) {
      append_number(file, 1, 2);
      append_number(file, 16, 2);
      append_number(file, part.content.size(), 8);
      append_number(file, part.content.size(), 8);
    }
    file += part.content;
    directory += std::string_view("PK\x01\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
    sizes(directory, part.content.size());
    append_number(directory, part.name.size(), 2);
    append_number(directory, form.wide_entries ? 32 : 0, 2);
    directory += std::string(10, '\0');
    append_number(directory, form.wide_entries ? 0xFFFFFFFF : begin, 4);
    directory += part.name;
    if (form.wide_entries) {
      directory += std::string_view("\x99\x99\0\0", 4);  // A field nobody knows.
      append_number(directory, 1, 2);
      append_number(directory, 24, 2);
      append_number(directory, part.content.size(), 8);
      append_number(directory, part.content.size(), 8);
      append_number(directory, begin, 8);
    }
  }
  const std::size_t offset = file.size();
  file += directory;
  if (form.wide_end) {
    const std::size_t record = file.size();
    file += "PK\x06\x06";
    append_number(file, 44, 8);
    file += std::string(12, '\0');
    for (const std::size_t number : {parts.size(), parts.size(), directory.size(), offset})
      append_number(file, number, 8);
    file += "PK\x06\x07";
    append_number(file, 0, 4);
    append_number(file, record, 8);
    append_number(file, 1, 4);
  }
  file += "PK\x05\x06";
  append_number(file, 0, 4);
  append_number(file, form.wide_end ? 0xFFFF : parts.size(), 2);
  append_number(file, form.wide_end ? 0xFFFF : parts.size(), 2);
  append_number(file, form.wide_end ? 0xFFFFFFFF : directory.size(), 4);
  append_number(file, form.wide_end ? 0xFFFFFFFF : offset, 4);
  append_number(file, 0, 2);
  return file;
}

/// An archive with this pickle, the byte order and these storages by key.
inline std::string torch_file_bytes(std::string_view pickle, const std::map<std::string, std::string>& storages = {},
                                    const ZipForm& form = {}) {
  std::vector<ZipPart> parts = {{"x/data.pkl", std::string(pickle)}, {"x/byteorder", "little"}};
  for (const auto& [key, content] : storages) parts.push_back({"x/data/" + key, content});
  return zip_bytes(parts, form);
}

// ---- pieces of pickles ----

inline std::string pickled_text(std::string_view text) {
  std::string pickle = "X";
  append_number(pickle, text.size(), 4);
  return pickle.append(text);
}

/// LONG1 of eight bytes.
inline std::string pickled_integer(std::int64_t value) {
  std::string pickle = "\x8a\x08";
  append_number(pickle, static_cast<std::uint64_t>(value), 8);
  return pickle;
}

inline std::string pickled_tuple(const std::vector<std::int64_t>& values) {
  std::string pickle = "(";
  for (const std::int64_t value : values) pickle += pickled_integer(value);
  return pickle + "t";
}

inline std::string pickled_storage(std::string_view type, std::string_view key, std::int64_t elements) {
  return "(" + pickled_text("storage") + "ctorch\n" + std::string(type) + "\n" + pickled_text(key) +
         pickled_text("cpu") + pickled_integer(elements) + "tQ";
}

/// _rebuild_tensor_v2 over a storage that `pickled_storage` made.
inline std::string pickled_tensor(std::string_view storage, std::int64_t offset, const std::vector<std::int64_t>& shape,
                                  const std::vector<std::int64_t>& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + std::string(storage) + pickled_integer(offset) +
         pickled_tuple(shape) + pickled_tuple(strides) + "\x89" + "ccollections\nOrderedDict\n)RtR";
}

/// With PROTO 2 before it and STOP behind.
inline std::string pickle_of(std::string_view body) { return "\x80\x02" + std::string(body) + "."; }

}  // namespace duet::test
