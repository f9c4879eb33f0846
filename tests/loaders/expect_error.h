#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "duet/error.h"

namespace duet::test {

/// `action()` throws Error of this code and its text holds every one of `parts`.
template <typename Action>
testing::AssertionResult fails_with(Code code, const std::vector<std::string_view>& parts, Action action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string text = error.what();
    if (error.code() != code) {
      return testing::AssertionFailure() << "code " << name_of(error.code()) << ", not " << name_of(code) << ": "
                                         << text;
    }
    for (const std::string_view part : parts) {
      if (text.find(part) == std::string::npos)
        return testing::AssertionFailure() << "no '" << part << "' in: " << text;
    }
    return testing::AssertionSuccess() << text;
  } catch (const std::exception& error) {
    return testing::AssertionFailure() << "another exception: " << error.what();
  }
  return testing::AssertionFailure() << "nothing was thrown";
}

}  // namespace duet::test
