#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "duet/c_api.h"
#include "duet/engine.h"

// NOLINTBEGIN(readability-identifier-naming): C names.
struct duet_engine {
  explicit duet_engine(duet::Engine opened) : engine(std::move(opened)) {}
  std::mutex mutex;
  // Of tickets not waited for yet; declared before the engine, whose worker calls them until it has gone.
  std::map<duet::Ticket, std::unique_ptr<duet::TokenSink>> sinks;
  duet::Engine engine;
};
// NOLINTEND(readability-identifier-naming)

/// The C border: handles hold the C++ objects, exceptions stop here and become codes and a message of the thread.
namespace duet::api {

/// Keeps the sentence for duet_last_message.
duet_code fail(Code code, std::string message);

template <class Function>
duet_code guarded(Function&& function) noexcept {
  try {
    return function();
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(Code::no_room, "The process is out of memory.");
  } catch (const std::exception& error) {
    return fail(Code::internal, error.what());
  } catch (...) {
    return fail(Code::internal, "An unknown exception reached the C border.");
  }
}

/// Runs `function` when none of the pointers is null.
template <class Function, class... Pointers>
duet_code with(Function&& function, Pointers... pointers) noexcept {
  if ((!pointers || ...)) {
    return guarded([] { return fail(Code::invalid_argument, "An argument is NULL that may not be."); });
  }
  return guarded([&] {
    if constexpr (std::is_void_v<decltype(function())>) {
      function();
      return DUET_OK;
    } else {
      return function();
    }
  });
}

/// A new handle; null when memory is out.
template <class Handle>
Handle* made() noexcept {
  Handle* handle = nullptr;
  (void)guarded([&] {
    handle = std::make_unique<Handle>().release();
    return DUET_OK;
  });
  return handle;
}

/// A constant of a C enumeration, 0 to `last`. Throws Error(invalid_argument) for another number.
template <class Enum>
Enum checked(int value, int last, const char* what) {
  if (value < 0 || value > last)
    throw Error(Code::invalid_argument, std::to_string(value) + " is no value of " + what,
                "Pass one of the enumeration's constants");
  return static_cast<Enum>(value);
}

}  // namespace duet::api
