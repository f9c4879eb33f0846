#pragma once

#include <cstdint>
#include <string_view>

/// Opcodes of pickles: CPython's Lib/pickletools.py.
namespace duet::loaders {

/// Those that are read.
enum class Opcode : std::uint8_t {
  mark = '(',
  stop = '.',
  binint = 'J',
  binint1 = 'K',
  binint2 = 'M',
  none = 'N',
  binpersid = 'Q',
  reduce = 'R',
  binunicode = 'X',
  append = 'a',
  build = 'b',
  global = 'c',
  appends = 'e',
  binget = 'h',
  long_binget = 'j',
  binput = 'q',
  long_binput = 'r',
  setitem = 's',
  tuple = 't',
  setitems = 'u',
  empty_dict = '}',
  empty_list = ']',
  empty_tuple = ')',
  binfloat = 'G',
  proto = 0x80,
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  newtrue = 0x88,
  newfalse = 0x89,
  long1 = 0x8a,
  short_binunicode = 0x8c,
  memoize = 0x94,
  frame = 0x95
};

/// Of any opcode that exists, read or not: "STACK_GLOBAL". Empty for a byte that is none.
std::string_view name_of_opcode(std::uint8_t code);

}  // namespace duet::loaders
