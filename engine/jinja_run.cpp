// Rendering: a walk over the syntax tree.
#include "engine/jinja_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "engine/jinja_library.h"
#include "engine/jinja_operators.h"

namespace duet::jinja {

namespace {

/// One step is an expression, a statement, a turn of a loop, or a kilobyte worked on.
constexpr std::int64_t kMaxSteps = 5'000'000;

enum class Flow { on, break_loop, continue_loop };

std::string today(const std::string& format, std::string_view date) {
  if (!date.empty()) return std::string(date);
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[256];
  const std::size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &local);
  return {buffer, size};
}

/// Variables by name.
class Scope {
 public:
  const Value* find(std::string_view name) const {
    for (const auto& [key, value] : variables_) {
      if (key == name) return &value;
    }
    return nullptr;
  }
  void set(std::string_view name, Value value) {
    for (auto& [key, old] : variables_) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    variables_.emplace_back(name, std::move(value));
  }

 private:
  std::vector<std::pair<std::string, Value>> variables_;
};

/// Counts how deep the walk is; the limit keeps it far from the end of the stack.
class DepthGuard {
 public:
  explicit DepthGuard(int& depth) : depth_(depth) {
    constexpr int kMaxDepth = 400;  // Far over any template, and fits 8 MiB of stack in instrumented builds too.
    if (++depth_ > kMaxDepth) fail("its expressions and macros nest too deeply");
  }
  ~DepthGuard() { --depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  int& depth_;
};

class Runner {
 public:
  Runner(const Dict& globals, std::string_view date) : date_(date) {
    scopes_.emplace_back();
    for (const auto& [name, value] : globals.items) scopes_[0].set(name, value);
    for (const char* name : {"raise_exception", "strftime_now", "namespace", "range", "dict"}) {
      scopes_[0].set(name, Callable{nullptr, name});
    }
    scopes_.emplace_back();
  }

  Text run(const Program& program) {
    Text out;
    execute(program.body, out);
    return out;
  }

 private:
  using ExprKind = Expression::Kind;
  using StatementKind = Statement::Kind;

  void count_steps(std::size_t steps) {
    steps_ += static_cast<std::int64_t>(steps);
    if (steps_ > kMaxSteps) fail("rendering takes too many steps");
  }

  /// Counts the work that goes through the whole of a value.
  const Value& counted(const Value& value) {
    if (const Text* text = value.text()) count_steps(text->bytes.size() / 1024);
    if (const List* list = value.list()) count_steps(list->size());
    return value;
  }

  // ---- statements ----

  Flow execute(const Block& block, Text& out) {
    const DepthGuard guard(depth_);
    for (const Statement& statement : block) {
      count_steps(1);
      const Flow flow = execute(statement, out);
      if (flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  Flow execute(const Statement& statement, Text& out) {
    switch (statement.kind) {
      case StatementKind::text:
        out.append(statement.text);
        break;
      case StatementKind::output:
        out.append(printed(counted(evaluate(*statement.expression))));
        break;
      case StatementKind::loop:
        loop(statement, out);
        break;
      case StatementKind::branches:
        for (const Branch& branch : statement.branches) {
          if (branch.condition == nullptr || is_true(evaluate(*branch.condition))) return execute(branch.body, out);
        }
        break;
      case StatementKind::assign:
        assign(statement, evaluate(*statement.expression));
        break;
      case StatementKind::assign_block: {
        Text made;
        scopes_.emplace_back();
        execute(statement.body, made);
        scopes_.pop_back();
        assign(statement, Value(std::move(made)));
        break;
      }
      case StatementKind::macro:
        assign(statement, Callable{statement.macro, ""});
        break;
      case StatementKind::group:
        return execute(statement.body, out);
      case StatementKind::break_loop:
        return Flow::break_loop;
      case StatementKind::continue_loop:
        return Flow::continue_loop;
    }
    check_size(out.bytes.size());
    return Flow::on;
  }

  void bind(const std::vector<std::string>& targets, const Value& value) {
    if (targets.size() == 1) return scopes_.back().set(targets[0], value);
    const List items = items_of(value);
    if (items.size() != targets.size()) fail(fmt::format("{} values for {} names", items.size(), targets.size()));
    for (std::size_t i = 0; i < items.size(); ++i) scopes_.back().set(targets[i], items[i]);
  }

  void assign(const Statement& statement, Value value) {
    if (statement.attribute.empty()) return bind(statement.targets, value);
    const Value holder = look_up(statement.targets[0]);
    if (holder.dict() == nullptr || !holder.dict()->is_namespace)
      fail("cannot assign attribute on non-namespace object");
    holder.dict()->set(statement.attribute, std::move(value));
  }

  void loop(const Statement& statement, Text& out) {
    List items = items_of(evaluate(*statement.expression));
    if (statement.filter != nullptr) {
      List kept;
      scopes_.emplace_back();
      for (const Value& item : items) {
        bind(statement.targets, item);
        if (is_true(evaluate(*statement.filter))) kept.push_back(item);
      }
      scopes_.pop_back();
      items = std::move(kept);
    }
    if (items.empty()) {
      scopes_.emplace_back();
      execute(statement.otherwise, out);
      scopes_.pop_back();
      return;
    }
    const auto count = static_cast<std::int64_t>(items.size());
    for (std::int64_t i = 0; i < count; ++i) {
      count_steps(1);
      const auto at = static_cast<std::size_t>(i);
      auto variable = std::make_shared<Dict>();
      variable->items = {{"index0", i},
                         {"index", i + 1},
                         {"first", i == 0},
                         {"last", i + 1 == count},
                         {"length", count},
                         {"revindex", count - i},
                         {"revindex0", count - i - 1},
                         {"previtem", i > 0 ? items[at - 1] : Value(Undefined{"previtem"})},
                         {"nextitem", i + 1 < count ? items[at + 1] : Value(Undefined{"nextitem"})}};
      scopes_.emplace_back();
      scopes_.back().set("loop", Value(std::move(variable)));
      bind(statement.targets, items[at]);
      const Flow flow = execute(statement.body, out);
      scopes_.pop_back();
      if (flow == Flow::break_loop) break;
    }
  }

  // ---- expressions ----

  Value look_up(const std::string& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const Value* found = scope->find(name)) return *found;
    }
    return Undefined{name};
  }

  Value evaluate(const Expression& e) {
    const DepthGuard guard(depth_);
    count_steps(1);
    switch (e.kind) {
      case ExprKind::constant:
        return e.value;
      case ExprKind::name:
        return look_up(e.name);
      case ExprKind::list: {
        List items;
        for (const ExpressionPtr& part : e.parts) items.push_back(evaluate(*part));
        return make_list(std::move(items));
      }
      case ExprKind::dict: {
        auto dict = std::make_shared<Dict>();
        for (std::size_t i = 0; i + 1 < e.parts.size(); i += 2)
          dict->set(evaluate(*e.parts[i]).as_text().bytes, evaluate(*e.parts[i + 1]));
        return dict;
      }
      case ExprKind::attribute:
        return attribute_of(evaluate(*e.parts[0]), e.name);
      case ExprKind::item:
        return item_of(counted(evaluate(*e.parts[0])), evaluate(*e.parts[1]));
      case ExprKind::slice:
        return slice(e);
      case ExprKind::call:
        return call(e);
      case ExprKind::filter:
        return apply_filter(e.name, counted(evaluate(*e.parts[0])), arguments_of(e));
      case ExprKind::test:
        return apply_test(e.name, counted(evaluate(*e.parts[0])), arguments_of(e));
      case ExprKind::logical_not:
        return !is_true(evaluate(*e.parts[0]));
      case ExprKind::negate:
        return negate(evaluate(*e.parts[0]));
      case ExprKind::binary:
        return binary(e.name, evaluate(*e.parts[0]), evaluate(*e.parts[1]));
      case ExprKind::compare:
        return compare(e);
      case ExprKind::logical_and: {
        Value left = evaluate(*e.parts[0]);
        return is_true(left) ? evaluate(*e.parts[1]) : left;
      }
      case ExprKind::logical_or: {
        Value left = evaluate(*e.parts[0]);
        return is_true(left) ? left : evaluate(*e.parts[1]);
      }
      case ExprKind::conditional:
        if (is_true(evaluate(*e.parts[1]))) return evaluate(*e.parts[0]);
        return e.parts[2] ? evaluate(*e.parts[2]) : Value(Undefined{"the inline if-expression"});
    }
    return Undefined{};
  }

  Arguments arguments_of(const Expression& e) {
    Arguments arguments;
    for (std::size_t i = 1; i < e.parts.size(); ++i) arguments.positional.push_back(evaluate(*e.parts[i]));
    for (const auto& [name, value] : e.named) arguments.named.emplace_back(name, evaluate(*value));
    return arguments;
  }

  Value slice(const Expression& e) {
    const Value object = evaluate(*e.parts[0]);
    counted(object);
    Value bounds[3];
    const Value* given[3] = {nullptr, nullptr, nullptr};
    for (std::size_t i = 0; i < 3; ++i) {
      if (!e.parts[i + 1]) continue;
      bounds[i] = evaluate(*e.parts[i + 1]);
      if (!bounds[i].is_none()) given[i] = &bounds[i];
    }
    return slice_of(object, given[0], given[1], given[2]);
  }

  Value concatenate(Text left, const Text& right) {
    count_steps((left.bytes.size() + right.bytes.size()) / 1024);
    check_size(left.bytes.size() + right.bytes.size());
    left.append(right);
    return left;
  }

  Value binary(const std::string& name, const Value& a, const Value& b) {
    if (name == "~") return concatenate(printed(a), printed(b));
    if (name == "+" && a.text() != nullptr) return concatenate(*a.text(), b.as_text());
    if (name == "+" && a.list() != nullptr && b.list() != nullptr) {
      List items = *a.list();
      items.insert(items.end(), b.list()->begin(), b.list()->end());
      return make_list(std::move(items));
    }
    return arithmetic(name, a, b);
  }

  Value compare(const Expression& e) {
    Value left = evaluate(*e.parts[0]);
    for (std::size_t i = 0; i < e.operators.size(); ++i) {
      Value right = evaluate(*e.parts[i + 1]);
      const std::string& name = e.operators[i];
      bool holds = false;
      if (name == "==") holds = are_equal(left, right);
      if (name == "!=") holds = !are_equal(left, right);
      if (name == "<") holds = is_less(left, right);
      if (name == ">") holds = is_less(right, left);
      if (name == "<=") holds = !is_less(right, left);
      if (name == ">=") holds = !is_less(left, right);
      if (name == "in") holds = contains(right, left);
      if (name == "not in") holds = !contains(right, left);
      if (!holds) return false;
      left = std::move(right);
    }
    return true;
  }

  // ---- calls ----

  Value call(const Expression& e) {
    const Expression& callee = *e.parts[0];
    if (callee.kind == ExprKind::attribute) {
      const Value object = evaluate(*callee.parts[0]);
      const Value* member = object.dict() != nullptr ? object.dict()->find(callee.name) : nullptr;
      if (member == nullptr || member->callable() == nullptr)
        return call_method(counted(object), callee.name, arguments_of(e));
      return call(*member->callable(), arguments_of(e));
    }
    const Value function = evaluate(callee);
    if (function.callable() == nullptr) {
      if (function.is_undefined()) refuse(fmt::format("the function {}()", std::get<Undefined>(function.data).name));
      fail(fmt::format("{} cannot be called", type_of(function)));
    }
    return call(*function.callable(), arguments_of(e));
  }

  Value call(const Callable& callable, const Arguments& arguments) {
    if (callable.macro) return call(*callable.macro, arguments);
    const std::string& name = callable.function;
    if (name == "raise_exception") {
      const Value* message = arguments.find(0, "message");
      fail(message != nullptr ? printed(*message).bytes : "it gives no reason");
    }
    if (name == "strftime_now") {
      const Value* format = arguments.find(0, "format");
      return make_text(today(format != nullptr ? format->as_text().bytes : "%d %b %Y", date_));
    }
    if (name == "range") return counted(range_of(arguments.positional));
    auto made = std::make_shared<Dict>();  // namespace and dict
    made->is_namespace = name == "namespace";
    for (const auto& [key, value] : arguments.named) made->set(key, value);
    if (!arguments.positional.empty()) refuse(fmt::format("{}() with unnamed arguments", name));
    return made;
  }

  Value call(const Macro& macro, const Arguments& arguments) {
    if (arguments.positional.size() > macro.parameters.size())
      fail(fmt::format("macro '{}' takes {} arguments", macro.name, macro.parameters.size()));
    Scope scope;
    for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
      const auto& [name, fallback] = macro.parameters[i];
      const Value* given = arguments.find(i, name);
      scope.set(name, given != nullptr ? *given : fallback != nullptr ? evaluate(*fallback) : Value(Undefined{name}));
    }
    // A macro sees its parameters, the template's own variables and the globals, not the caller's loops.
    std::vector<Scope> outer(std::make_move_iterator(scopes_.begin() + 2), std::make_move_iterator(scopes_.end()));
    scopes_.resize(2);
    scopes_.push_back(std::move(scope));
    Text out;
    execute(macro.body, out);
    scopes_.resize(2);
    scopes_.insert(scopes_.end(), std::make_move_iterator(outer.begin()), std::make_move_iterator(outer.end()));
    return out;
  }

  std::vector<Scope> scopes_;  // globals, the template's own, then loops and macros
  std::string_view date_;
  std::int64_t steps_ = 0;
  int depth_ = 0;
};

}  // namespace

Text run(const Program& program, const Dict& globals, std::string_view date) {
  return Runner(globals, date).run(program);
}

}  // namespace duet::jinja
