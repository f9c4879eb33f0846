#include "tools/run/ask.h"

#include <utility>

namespace duet::run {

Request request_for(const RunOptions& options, std::string text) {
  Request request = options.request;
  if (options.raw) {
    request.prompt = std::move(text);
    return request;
  }
  if (!options.system.empty()) request.messages.push_back({"system", options.system});
  request.messages.push_back({"user", std::move(text)});
  return request;
}

Reply ask(Engine& engine, const RunOptions& options, Mode mode, Request request, TokenSink* sink) {
  Reply reply;
  switch (mode) {
    case Mode::single:
      if (request.model.empty()) request.model = options.only_model;
      reply.answers.push_back(engine.run(request, sink));
      break;
    case Mode::route:
      reply.routed = true;
      reply.route = engine.route(request, options.rules, sink);
      reply.answers.push_back(reply.route.answer);
      break;
    case Mode::compare: {
      std::vector<Ticket> tickets;
      for (const std::string& model : compared_models(options)) {
        request.model = model;
        tickets.push_back(engine.submit(request));
      }
      for (const Ticket ticket : tickets) reply.answers.push_back(engine.wait(ticket));
      break;
    }
  }
  return reply;
}

Code code_of(const Reply& reply) {
  for (const Answer& answer : reply.answers) {
    if (answer.code != Code::ok) return answer.code;
  }
  return Code::ok;
}

}  // namespace duet::run
