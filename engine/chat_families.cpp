// Chat templates that can be asked for by name: for checkpoints without a usable one.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "duet/error.h"
#include "engine/chat_template.h"

namespace duet {

namespace {

// What each renders is what the published template of its family renders for messages of plain text, without tools.

constexpr std::string_view kChatml = R"({%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor -%}
{{ '<|im_start|>assistant\n' if add_generation_prompt }})";

// A system prompt of its own where the chat begins without one.
constexpr std::string_view kQwen2 = R"({%- if messages and messages[0].role != 'system' -%}
{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
{%- endif -%}
{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor -%}
{{ '<|im_start|>assistant\n' if add_generation_prompt }})";

constexpr std::string_view kQwen25 = R"({%- if messages and messages[0].role != 'system' -%}
{{ '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
{%- endif -%}
{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor -%}
{{ '<|im_start|>assistant\n' if add_generation_prompt }})";

// Thoughts (<think> ... </think>) of answers before the last question fall away; later ones stay.
constexpr std::string_view kQwen3 = R"({%- set state = namespace(question=-1) -%}
{%- for m in messages -%}
{%- if m.role == 'user' and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) -%}
{%- set state.question = loop.index0 -%}
{%- endif -%}
{%- endfor -%}
{%- if state.question < 0 -%}{%- set state.question = messages|length - 1 -%}{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- set answer, thought = m.content, '' -%}
{%- if '</think>' in m.content -%}
{%- set answer = m.content.split('</think>')[-1].lstrip('\n') -%}
{%- set thought = m.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
{%- endif -%}
{%- if loop.index0 > state.question and (loop.last or thought) -%}
{{ '<|im_start|>assistant\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + answer.lstrip('\n') + '<|im_end|>\n' }}
{%- else -%}
{{ '<|im_start|>assistant\n' + answer + '<|im_end|>\n' }}
{%- endif -%}
{%- elif m.role == 'tool' -%}
{{ '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' }}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{{- '<|im_end|>\n' if loop.last or messages[loop.index0 + 1].role != 'tool' }}
{%- elif m.role == 'user' or m.role == 'system' -%}
{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\n\n</think>\n\n' }}{%- endif -%}
{%- endif -%})";

// The system prompt stands inside the first question; every question has its own start token.
constexpr std::string_view kLlama2 = R"({%- set has_system = messages and messages[0].role == 'system' -%}
{%- set turns = messages[1:] if has_system else messages -%}
{%- for m in turns -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif -%}
{%- set content = m.content -%}
{%- if loop.first and has_system -%}
{%- set content = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' + m.content -%}
{%- endif -%}
{%- if m.role == 'user' -%}
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- elif m.role == 'assistant' -%}
{{ ' ' + content.strip() + ' ' + eos_token }}
{%- endif -%}
{%- endfor -%})";

constexpr std::string_view kLlama3 = R"({{- bos_token -}}
{%- for m in messages -%}
{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content.strip() + '<|eot_id|>' }}
{%- endfor -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' if add_generation_prompt }})";

// A system turn with dates stands in front of every chat.
constexpr std::string_view kLlama31 = R"({%- set has_system = messages and messages[0].role == 'system' -%}
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n' }}
{{- messages[0].content.strip() if has_system }}{{- '<|eot_id|>' -}}
{%- for m in (messages[1:] if has_system else messages) -%}
{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content.strip() + '<|eot_id|>' }}
{%- endfor -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' if add_generation_prompt }})";

constexpr std::string_view kMistral = R"({{- bos_token -}}
{%- for m in messages -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif -%}
{%- if m.role == 'user' -%}
{{ '[INST] ' + m.content + ' [/INST]' }}
{%- elif m.role == 'assistant' -%}
{{ m.content + eos_token }}
{%- else -%}
{{ raise_exception('Only user and assistant roles are supported!') }}
{%- endif -%}
{%- endfor -%})";

constexpr std::string_view kZephyr = R"({%- for m in messages -%}
{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' if m.role in ['system', 'user', 'assistant'] }}
{%- endfor -%}
{{ '<|assistant|>\n' if messages and add_generation_prompt }})";

constexpr std::string_view kGemma = R"({{- bos_token -}}
{%- if messages and messages[0].role == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}
{%- for m in messages -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif -%}
{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content.strip() + '<end_of_turn>\n' }}
{%- endfor -%}
{{ '<start_of_turn>model\n' if add_generation_prompt }})";

struct Family {
  std::string_view name, text;
};

constexpr std::array<Family, 10> kFamilies = {{{"chatml", kChatml},
                                               {"qwen2", kQwen2},
                                               {"qwen2.5", kQwen25},
                                               {"qwen3", kQwen3},
                                               {"llama2", kLlama2},
                                               {"llama3", kLlama3},
                                               {"llama3.1", kLlama31},
                                               {"mistral", kMistral},
                                               {"zephyr", kZephyr},
                                               {"gemma", kGemma}}};

constexpr auto kNames = [] {
  std::array<std::string_view, kFamilies.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kFamilies[i].name;
  return names;
}();

}  // namespace

std::span<const std::string_view> chat_family_names() { return kNames; }

std::string_view chat_family_template(std::string_view name) {
  const auto* found =
      std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& family) { return family.name == name; });
  if (found != kFamilies.end()) return found->text;
  throw Error(Code::not_found, fmt::format("There is no chat template family '{}'", name),
              fmt::format("The families are {}", fmt::join(kNames, ", ")));
}

}  // namespace duet
