#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "loaders/torch_file.h"
#include "loaders/zip_directory.h"

/// The pickle of a torch.save file, read as data.
namespace duet::loaders {

/// An archive whose directory was checked.
struct TorchArchive {
  std::shared_ptr<const MappedFile> file;
  std::map<std::string, ZipEntry, std::less<>> storages;  ///< By key: the entries `<prefix>/data/<key>`.
};

/// What the pickle `program` builds. Errors as in read_torch_file; offsets are bytes of `program`.
TorchValue read_torch_pickle(const TorchArchive& archive, std::string_view program);

}  // namespace duet::loaders
