"""Chat templates as checkpoints carry them, one a family and variants of it, to render with jinja2 and with Duet.

`family` names the built-in family that must render the same for conversations without tools; `tokenizer` the shared
tokenizer whose ids are stored.
"""

ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."

CHATML = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

QWEN2 = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n" "SYSTEM" "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {{- '\n<tool_call>\n' }}{{- tool_call | tojson }}{{- '\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

LLAMA2 = "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('" + ALTERNATE + "') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"

LLAMA3 = "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"

LLAMA31 = r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message + builtin tools #}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\n\n"}}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

MISTRAL = "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('" + ALTERNATE + "') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"

MISTRAL_V3 = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- This block checks for alternating user/assistant messages, skipping tool calling messages #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] " + tools|tojson + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- set content = message.content %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + "}[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

ZEPHYR = "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"

GEMMA = "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('" + ALTERNATE + "') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"

PHI3 = "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"

# Not a family: constructs of the language that templates use here and there.
WHITE_SPACE = "{% for m in messages %}\n    {% if m.role == 'user' %}\n<u>{{ m.content }}\n    {% endif %}\n{% endfor %}\n<a>"

LANGUAGE = r"""
{# a comment #}
  {%+ if true %} kept {% endif +%}
{%- macro turn(role, text='none', last=false) -%}
  [{{ role|upper }}:{{ text }}{{ '!' if last }}]
{%- endmacro %}
{% set ns = namespace(count=0, names=[]) %}
{% for m in messages if m.role != 'tool' %}
  {%- set ns.count = ns.count + loop.length %}
  {{- turn(m.role, m.content[1:-1], last=loop.last) }}{{ loop.index }}/{{ loop.revindex }}/{{ loop.revindex0 }}{% if loop.first %}F{% endif %}
  {% if loop.previtem is defined %}{{ loop.previtem.role[0] }}{% endif %}{{ (loop.nextitem or {}).get('role', '-') }}
  {% if loop.index > 3 %}{% break %}{% endif %}
{% else %}
  empty
{% endfor %}
{%- set block %}<{{ ns.count }}>{% endset %}
{{ block ~ 1 ~ 2.5 ~ none ~ true }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 * 3 + 4 }} {{ 1 < 2 <= 2 and not 3 == 4 }}
{{ messages|map(attribute='role')|join(', ') }} {{ messages|rejectattr('role', 'equalto', 'user')|list|length }}
{{ messages[-1]['content']|trim|length }} {{ messages[::-1][0].role }} {{ missing|default('d') }} {{ ''|default('e', true) }}
{{ 'a,b,,c'.split(',')|tojson }} {{ 'a b  c '.split()|last }} {{ ' x '.strip() ~ '|' }} {{ 'xxabxx'.strip('x') }} {{ "it's" 'joined' }}
{{ 'abc' in 'xabcx' }} {{ 'k' in {'k': 1} }} {{ 3 not in [1, 2] }} {{ {'a': 1, 'b': [true, none, 'q"\n']}|tojson }}
{{ 'title case'|title }} {{ 'ABC'.lower() }} {{ 'abab'.replace('b', 'c') }} {{ 'a-b'|replace('-', '+') }} {{ range(3)|list|tojson }} {{ (1, 2)|last }}
{% for key, value in {'x': 1, 'y': 'z'}.items() %}{{ key }}={{ value }};{% endfor %}
{% if messages is iterable and messages is not string and 4 is divisibleby 2 and missing is undefined %}tests{% endif %}
{{ 'é' + '\u00e9\x41\t|' }} {{ '%}' }} {{ messages|selectattr('role', 'in', ['user'])|first|default({}, true) is mapping }}
{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}

"""

TEMPLATES = [
    {"name": "chatml", "family": "chatml", "tokenizer": "qwen3", "text": CHATML},
    {"name": "qwen2", "family": "qwen2", "tokenizer": "qwen3", "text": QWEN2.replace("SYSTEM", "You are a helpful assistant.")},
    {"name": "qwen2.5", "family": "qwen2.5", "tokenizer": "qwen3", "text": QWEN25},
    {"name": "smollm2", "text": QWEN2.replace("SYSTEM", "You are a helpful AI assistant named SmolLM, trained by Hugging Face")},
    {"name": "llama2", "family": "llama2", "tokenizer": "llama2", "text": LLAMA2},
    {"name": "llama3", "family": "llama3", "text": LLAMA3, "tokens": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}},
    {"name": "llama3.1", "family": "llama3.1", "text": LLAMA31, "tokens": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}},
    {"name": "mistral", "family": "mistral", "tokenizer": "llama2", "text": MISTRAL},
    {"name": "mistral v3", "text": MISTRAL_V3},
    {"name": "zephyr", "family": "zephyr", "tokenizer": "llama2", "text": ZEPHYR},
    {"name": "gemma", "family": "gemma", "text": GEMMA, "tokens": {"bos_token": "<bos>", "eos_token": "<eos>"}},
    {"name": "phi3", "text": PHI3},
    {"name": "white space", "text": WHITE_SPACE},
    {"name": "language", "text": LANGUAGE},
]
