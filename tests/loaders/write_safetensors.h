#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "engine/half.h"

/// safetensors files for tests, written without any code of the loader under test.
namespace duet::test {

/// The file that has this text as its header, whatever it says, and `data` after it.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof length);
  bytes += header;
  bytes += data;
  return bytes;
}

struct WrittenTensor {
  std::string name;
  std::string dtype;  ///< "F32", "F16", "BF16", "F64", "U8" or "I8": how `values` are stored.
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

template <typename Value>
void append_raw(std::string& bytes, Value value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

inline std::string stored_bytes(const WrittenTensor& tensor) {
  std::string bytes;
  for (const float value : tensor.values) {
    if (tensor.dtype == "F32") append_raw(bytes, value);
    if (tensor.dtype == "F16") append_raw(bytes, to_half(value));
    if (tensor.dtype == "BF16") append_raw(bytes, to_bfloat16(value));
    if (tensor.dtype == "F64") append_raw(bytes, static_cast<double>(value));
    if (tensor.dtype == "U8") append_raw(bytes, static_cast<std::uint8_t>(value));
    if (tensor.dtype == "I8") append_raw(bytes, static_cast<std::int8_t>(value));
  }
  return bytes;
}

inline std::string safetensors_file(const std::vector<WrittenTensor>& tensors) {
  std::string header = "{";
  std::string data;
  for (const WrittenTensor& tensor : tensors) {
    const std::string bytes = stored_bytes(tensor);
    if (header.size() > 1) header += ",";
    header += "\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      header += (i > 0 ? "," : "") + std::to_string(tensor.shape[i]);
    }
    header +=
        "],\"data_offsets\":[" + std::to_string(data.size()) + "," + std::to_string(data.size() + bytes.size()) + "]}";
    data += bytes;
  }
  return safetensors_bytes(header + "}", data);
}

}  // namespace duet::test
