#include <fmt/format.h>

#include <system_error>

#include "duet/error.h"
#include "loaders/json_file.h"
#include "loaders/names.h"
#include "loaders/safetensors.h"

namespace duet::loaders {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

[[noreturn]] void refuse_missing(const fs::path& folder) {
  std::vector<std::string> pickles;
  std::vector<std::string> others;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".bin") || name.ends_with(".pth") || name.ends_with(".pt")) pickles.push_back(name);
    if (name.ends_with(".safetensors")) others.push_back(name);
  }
  const std::string what = fmt::format("{} has neither {} nor {}", quote(folder.string()), kSingleFile, kIndexFile);
  if (!others.empty()) {
    throw Error(Code::not_found, fmt::format("{}, but {}", what, listed(others)),
                fmt::format("If that is the whole model, name it {}", kSingleFile));
  }
  if (!pickles.empty()) {
    throw Error(Code::unsupported,
                fmt::format("{}, but {}, a pickle, which could run code when read", what, listed(pickles)),
                "Convert it: load it with transformers and call save_pretrained(folder, safe_serialization=True)");
  }
  throw Error(Code::not_found, what, "Is this the folder of a Hugging Face model, and the download complete?");
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

/// The real place of a shard, under the policy on SafetensorsSet. `folder` is canonical.
fs::path resolve_shard(const fs::path& folder, const std::string& name, const std::string& tensor,
                       const std::string& index) {
  const std::string place = fmt::format("{}: tensor {} is mapped to {}", quote(index), quote(tensor), quote(name));
  const bool plain = !name.empty() && name != "." && name != ".." &&
                     name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  if (!plain || !name.ends_with(".safetensors")) {
    throw Error(Code::bad_file, fmt::format("{}, which is not the plain name of a .safetensors file", place));
  }
  std::error_code failure;
  fs::path target = fs::canonical(folder / name, failure);
  if (failure) {
    throw Error(Code::not_found, fmt::format("{}, but the folder has no such file", place), "Download not complete?");
  }
  if (is_inside(target, folder)) return target;
  if (folder.parent_path().filename() == "snapshots" &&
      is_inside(target, folder.parent_path().parent_path() / "blobs")) {
    return target;
  }
  throw Error(Code::bad_file, fmt::format("{}, a symbolic link that leads out of the folder", place),
              "Put the file itself in the folder");
}

/// Tensor to shard name, with the shards' real places.
struct Index {
  std::map<std::string, std::string, std::less<>> shard_of;
  std::map<std::string, fs::path> place_of;
};

Index read_index(const fs::path& folder, const fs::path& path) {
  const Json json = read_json_file(path);
  const auto map = JsonObject(json, path.string()).object("weight_map");
  if (!map) throw Error(Code::bad_file, fmt::format("{} has no weight_map", quote(path.string())));
  const fs::path real_folder = fs::canonical(folder);
  Index index;
  for (const auto& [tensor, shard] : map->json().get_ref<const Json::object_t&>()) {
    if (!shard.is_string()) {
      throw Error(Code::bad_file,
                  fmt::format("{} is {}; the name of a shard was expected", map->where(tensor), shown(shard)));
    }
    const auto& name = shard.get_ref<const std::string&>();
    index.shard_of.emplace(tensor, name);
    if (!index.place_of.contains(name))
      index.place_of.emplace(name, resolve_shard(real_folder, name, tensor, path.string()));
  }
  if (index.shard_of.empty()) throw Error(Code::bad_file, fmt::format("{} maps no tensor", quote(path.string())));
  return index;
}

void check_against_index(const SafetensorsFile& file, const std::string& shard, const Index& index,
                         const std::string& index_name) {
  for (const Tensor& tensor : file.tensors()) {
    const auto entry = index.shard_of.find(tensor.name);
    if (entry == index.shard_of.end()) {
      throw Error(Code::bad_file, fmt::format("{} is not in {}", where(tensor), quote(index_name)));
    }
    if (entry->second != shard) {
      throw Error(Code::bad_file,
                  fmt::format("{}, but {} has it in {}", where(tensor), quote(index_name), quote(entry->second)));
    }
  }
}

}  // namespace

SafetensorsSet::SafetensorsSet(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw Error(Code::not_found, fmt::format("There is no folder {}", quote(folder.string())), "Check the path");
  }
  if (fs::exists(folder / kSingleFile, ignored)) {
    add(SafetensorsFile(folder / kSingleFile));
    return;
  }
  const fs::path index_path = folder / kIndexFile;
  if (!fs::exists(index_path, ignored)) refuse_missing(folder);

  const Index index = read_index(folder, index_path);
  for (const auto& [shard, place] : index.place_of) {
    const SafetensorsFile file(place, Symlinks::refuse);
    check_against_index(file, shard, index, index_path.string());
    add(file);
  }
  for (const auto& [tensor, shard] : index.shard_of) {
    if (find(tensor) == nullptr) {
      throw Error(Code::bad_file, fmt::format("{}: tensor {} is not in {}, where the index has it",
                                              quote(index_path.string()), quote(tensor), quote(shard)));
    }
  }
}

void SafetensorsSet::add(const SafetensorsFile& file) {
  files_.push_back(file.file());
  for (const Tensor& tensor : file.tensors()) {
    by_name_.emplace(tensor.name, tensors_.size());
    tensors_.push_back(tensor);
  }
}

const Tensor* SafetensorsSet::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace duet::loaders
