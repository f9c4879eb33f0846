#include "loaders/safetensors_writer.h"

#include <cstring>

#include "duet/error.h"
#include "loaders/file_writer.h"
#include "loaders/json_file.h"

namespace duet::loaders {

std::uint64_t TensorToWrite::bytes() const {
  std::uint64_t count = element_bytes;
  for (const std::int64_t size : shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::function<std::vector<std::byte>(const TensorToWrite&)>& content) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::uint64_t end = 0;
  for (const TensorToWrite& tensor : tensors) {
    const std::uint64_t begin = end;
    end += tensor.bytes();
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // Tensors then begin at a multiple of 8.
  std::uint64_t offset = 8 + text.size();
  std::string head(8, '\0');
  const std::uint64_t length = text.size();
  std::memcpy(head.data(), &length, sizeof length);
  head += text;

  FileWriter file(path);
  file.write(0, std::as_bytes(std::span(head)));
  for (const TensorToWrite& tensor : tensors) {
    const std::vector<std::byte> bytes = content(tensor);
    if (bytes.size() != tensor.bytes())
      throw Error(Code::internal, "A tensor to write has another size than announced");
    file.write(offset, bytes);
    offset += bytes.size();
  }
  file.finish();
}

}  // namespace duet::loaders
