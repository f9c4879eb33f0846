#include "tools/run/report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace duet::run {
namespace {

using Json = nlohmann::ordered_json;

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

double milliseconds(double seconds) { return std::round(seconds * 1e6) / 1e3; }

Json ids_of(const Answer& answer) {
  Json ids = Json::array();
  for (const GeneratedToken& token : answer.tokens) ids.push_back(token.id);
  return ids;
}

Json logprobs_of(const Answer& answer) {
  Json all = Json::array();
  for (const GeneratedToken& token : answer.tokens) {
    Json best = Json::array();
    for (const TokenLogprob& entry : token.best) best.push_back({entry.id, entry.logprob});
    all.push_back(std::move(best));
  }
  return all;
}

Json route_of(const RoutedAnswer* route) {
  if (route == nullptr) return nullptr;
  return {{"escalated", route->escalated},
          {"reason", route->reason},
          {"confidence", route->confidence},
          {"fast", {{"model", route->fast.model}, {"ids", ids_of(route->fast)}, {"text", route->fast.text}}}};
}

Json timings_of(const Timings& timings) {
  return {{"queued", milliseconds(timings.queued)},
          {"prefill", milliseconds(timings.prefill)},
          {"first_token", milliseconds(timings.first_token)},
          {"decode", milliseconds(timings.decode)},
          {"total", milliseconds(timings.total)}};
}

Json engine_counters(const Counters& counters) {
  return {{"requests", counters.requests},
          {"finished", counters.finished},
          {"failed", counters.failed},
          {"cancelled", counters.cancelled},
          {"switches", counters.switches},
          {"steps", counters.steps},
          {"prompt_tokens", counters.prompt_tokens},
          {"cached_tokens", counters.cached_tokens},
          {"generated_tokens", counters.generated_tokens},
          {"evicted_pages", counters.evicted_pages},
          {"recomputed_tokens", counters.recomputed_tokens},
          {"total_pages", counters.total_pages},
          {"free_pages", counters.free_pages},
          {"cached_pages", counters.cached_pages},
          {"active_sequences", counters.active_sequences},
          {"waiting", counters.waiting},
          {"most_passed_over", counters.most_passed_over}};
}

Json answer_json(const Answer& answer, const RoutedAnswer* route, const Counters& counters) {
  return {{"model", answer.model},
          {"prompt_ids", answer.prompt_ids},
          {"ids", ids_of(answer)},
          {"text", answer.text},
          {"finish", name_of(answer.finish)},
          {"logprobs", logprobs_of(answer)},
          {"route", route_of(route)},
          {"timings_ms", timings_of(answer.timings)},
          {"counters",
           {{"prompt_tokens", answer.prompt_ids.size()},
            {"cached_tokens", answer.cached_tokens},
            {"generated_tokens", answer.tokens.size()},
            {"removed_tokens", answer.cut.removed_tokens},
            {"segments", answer.cut.segments},
            {"engine", engine_counters(counters)}}}};
}

void add_error(Json& json, const Answer& answer) {
  if (answer.code != Code::ok) json["error"] = {{"code", name_of(answer.code)}, {"message", answer.message}};
}

}  // namespace

std::string json_of(const Answer& answer, const RoutedAnswer* route, const Counters& counters) {
  return dumped(answer_json(answer, route, counters));
}

std::string json_line_of(const Reply& reply, std::uint64_t line, const std::string& id_json, const Counters& counters) {
  Json json = {{"line", line}};
  if (!id_json.empty()) json["id"] = Json::parse(id_json);
  if (reply.answers.size() == 1) {
    json.update(answer_json(reply.answers.front(), reply.routed ? &reply.route : nullptr, counters));
    add_error(json, reply.answers.front());
    return dumped(json);
  }
  json["answers"] = Json::array();
  for (const Answer& answer : reply.answers) {
    Json one = answer_json(answer, nullptr, counters);
    add_error(one, answer);
    json["answers"].push_back(std::move(one));
  }
  return dumped(json);
}

std::string remark_on(const Reply& reply) {
  std::string text;
  if (reply.routed && reply.route.escalated) {
    text =
        fmt::format("{} took over from {}: {}", reply.route.answer.model, reply.route.fast.model, reply.route.reason);
  } else if (reply.routed && reply.route.answer.code == Code::ok) {
    text = fmt::format("{}: {}", reply.route.answer.model, reply.route.reason);
  }
  for (const Answer& answer : reply.answers) {
    const Cut& cut = answer.cut;
    if (cut.removed_tokens > 0)
      text += fmt::format("{}{} tokens of the prompt were left out, from token {} on", text.empty() ? "" : "; ",
                          cut.removed_tokens, cut.first_removed);
    if (cut.segments > 1)
      text += fmt::format("{}the prompt was asked in {} segments", text.empty() ? "" : "; ", cut.segments);
  }
  return text;
}

std::string stats_text(const Engine& engine, double seconds) {
  const Counters counters = engine.counters();
  const double safe = std::max(seconds, 1e-9);
  return fmt::format(
      "requests   {} ({} finished, {} failed, {} cancelled)\n"
      "tokens     {} prompt ({} from cache), {} generated\n"
      "time       {:.2f} s: {:.1f} requests/s, {:.1f} generated tokens/s\n"
      "steps      {}, {} switches of models taking {:.2f} ms (median {:.0f} us, p99 {:.0f} us)\n"
      "pages      {} of {} free, {} cached, {} evicted, {} tokens recomputed\n"
      "queue      a request was passed over {} times at most",
      counters.requests, counters.finished, counters.failed, counters.cancelled, counters.prompt_tokens,
      counters.cached_tokens, counters.generated_tokens, seconds, static_cast<double>(counters.requests) / safe,
      static_cast<double>(counters.generated_tokens) / safe, counters.steps, counters.switches,
      counters.switch_seconds * 1e3, counters.switch_p50 * 1e6, counters.switch_p99 * 1e6, counters.free_pages,
      counters.total_pages, counters.cached_pages, counters.evicted_pages, counters.recomputed_tokens,
      counters.most_passed_over);
}

}  // namespace duet::run
