#include "tools/model/command.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/model/model.h"

namespace ringfill {

int RunCommand(CLI::App& app, std::vector<std::string> arguments, std::ostream& out,
               std::ostream& err, const std::function<absl::Status()>& work) {
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error, out, err);
    err << app.get_name() << ": " << error.what() << "\nTry: " << app.get_name() << " --help\n";
    return 2;
  }
  const absl::Status done = work();
  if (done.ok()) return 0;
  err << app.get_name() << ": " << done.message() << "\n";
  return 1;
}

absl::StatusOr<std::string> DescribeModel(const std::string& path) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, Model::Load(path));
  const ModelConfig& c = model->config();
  return absl::StrFormat(
      "%d layers, width %d, %d heads, %d KV heads of %d, feed-forward %d, vocabulary %d, context "
      "%d; %s; %.1f MB",
      c.layers, c.width, c.heads, c.kv_heads, c.head_dim, c.ffn_width, c.vocab, c.trained_context,
      model->weight_summary(), static_cast<double>(model->file().bytes().size()) / 1e6);
}

}  // namespace ringfill
