#include "cli/completion.h"

#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/app.h"

namespace ringfill::cli {
namespace {

struct Flag {
  std::string name;  // with its dashes
  std::string description;
  bool takes_value = false;
  bool takes_file = false;
};

struct CommandFlags {
  std::string name;
  std::string description;
  std::vector<Flag> flags;
  std::vector<std::string> words;  // of its positional argument
};

std::string FirstSentence(std::string text) {
  text = text.substr(0, text.find('\n'));
  return text.substr(0, text.find(". "));
}

void AddFlags(const CLI::App& app, std::vector<Flag>& flags) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      flags.push_back({.name = absl::StrCat("--", name),
                       .description = FirstSentence(option->get_description()),
                       .takes_value = option->get_items_expected_max() > 0,
                       .takes_file = option->get_type_name() == kFileType});
    }
  }
  for (const CLI::App* group : app.get_subcommands({})) {
    if (group->get_name().empty()) AddFlags(*group, flags);  // an option group
  }
}

std::vector<CommandFlags> Commands(const CLI::App& app) {
  std::vector<CommandFlags> commands;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name().empty()) continue;
    CommandFlags entry;
    entry.name = command->get_name();
    entry.description = FirstSentence(command->get_description());
    AddFlags(*command, entry.flags);
    if (entry.name == kCompletionCommand) entry.words = {"bash", "zsh", "fish"};
    commands.push_back(std::move(entry));
  }
  return commands;
}

std::string Names(const std::vector<Flag>& flags) {
  std::vector<std::string> names;
  for (const Flag& flag : flags) names.push_back(flag.name);
  return absl::StrJoin(names, " ");
}

// A pattern of the flags that take a value, a file or another.
std::string BashPattern(const std::vector<Flag>& flags, bool takes_file) {
  std::set<std::string> names;
  for (const Flag& flag : flags) {
    if (flag.takes_value && flag.takes_file == takes_file) names.insert(flag.name);
  }
  return absl::StrJoin(names, "|");
}

// File names are left to readline (-o default), which knows about spaces and quotes.
std::string Bash(const std::vector<CommandFlags>& commands, const std::vector<Flag>& global) {
  std::vector<std::string> names;
  std::string cases;
  std::vector<Flag> all = global;
  for (const CommandFlags& command : commands) {
    names.push_back(command.name);
    absl::StrAppend(&cases, "    ", command.name, ") words=\"", Names(command.flags), " ",
                    absl::StrJoin(command.words, " "), "\" ;;\n");
    all.insert(all.end(), command.flags.begin(), command.flags.end());
  }
  const std::string files = BashPattern(all, true);
  const std::string values = BashPattern(all, false);
  return absl::StrCat(
      "# source <(ringfill completion bash)\n"
      "_ringfill() {\n"
      "  local current=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
      "  local command=\"\" before=\"\" word words\n"
      "  COMPREPLY=()\n"
      "  if [[ $previous == '=' ]]; then previous=\"${COMP_WORDS[COMP_CWORD-2]}\"; fi\n"
      "  case \"$previous\" in\n    ",
      files, ") compopt -o default; return ;;\n    ", values,
      ") return ;;\n"
      "  esac\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    case \"$before\" in ",
      files, "|", values,
      ") before=\"\"; continue ;; esac\n"
      "    case \"$word\" in ",
      absl::StrJoin(names, "|"),
      ") command=\"$word\"; break ;; esac\n"
      "    before=\"$word\"\n"
      "  done\n"
      "  case \"$command\" in\n",
      cases, "    *) words=\"", absl::StrJoin(names, " "), " ", Names(global),
      "\" ;;\n"
      "  esac\n"
      "  COMPREPLY=( $(compgen -W \"$words\" -- \"$current\") )\n"
      "}\n"
      "complete -F _ringfill ringfill\n");
}

std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshArguments(const std::vector<Flag>& flags) {
  std::string text;
  for (const Flag& flag : flags) {
    absl::StrAppend(&text, " \\\n        '*", flag.name, "[", ZshText(flag.description), "]",
                    flag.takes_file    ? ":file:_files"
                    : flag.takes_value ? ":value:"
                                       : "",
                    "'");
  }
  return text;
}

std::string Zsh(const std::vector<CommandFlags>& commands, const std::vector<Flag>& global) {
  std::string list;
  std::string cases;
  for (const CommandFlags& command : commands) {
    absl::StrAppend(&list, "        '", command.name, ":", ZshText(command.description), "'\n");
    absl::StrAppend(&cases, "      ", command.name, ") _arguments", ZshArguments(command.flags));
    if (!command.words.empty()) {
      absl::StrAppend(&cases, " \\\n        '1:shell:(", absl::StrJoin(command.words, " "), ")'");
    }
    absl::StrAppend(&cases, " ;;\n");
  }
  return absl::StrCat(
      "#compdef ringfill\n"
      "# ringfill completion zsh > a folder of fpath/_ringfill\n"
      "_ringfill() {\n"
      "  local state line\n"
      "  _arguments -C",
      ZshArguments(global),
      " \\\n        '1:command:->command' '*::argument:->argument'\n"
      "  case $state in\n"
      "    command)\n"
      "      local -a commands=(\n",
      list,
      "      )\n"
      "      _describe command commands ;;\n"
      "    argument)\n"
      "      case $line[1] in\n",
      cases,
      "      esac ;;\n"
      "  esac\n"
      "}\n"
      "_ringfill \"$@\"\n");
}

std::string FishText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}});
}

std::string FishFlags(const std::vector<Flag>& flags, const std::string& condition) {
  std::string text;
  for (const Flag& flag : flags) {
    absl::StrAppend(&text, "complete -c ringfill -n '", condition, "' -l ", flag.name.substr(2),
                    flag.takes_file    ? " -r -F"
                    : flag.takes_value ? " -x"
                                       : "",
                    " -d '", FishText(flag.description), "'\n");
  }
  return text;
}

std::string Fish(const std::vector<CommandFlags>& commands, const std::vector<Flag>& global) {
  std::string script = "# ringfill completion fish | source\ncomplete -c ringfill -f\n";
  absl::StrAppend(&script, FishFlags(global, "__fish_use_subcommand"));
  for (const CommandFlags& command : commands) {
    absl::StrAppend(&script, "complete -c ringfill -n __fish_use_subcommand -a ", command.name,
                    " -d '", FishText(command.description), "'\n");
    const std::string condition = absl::StrCat("__fish_seen_subcommand_from ", command.name);
    absl::StrAppend(&script, FishFlags(command.flags, condition));
    if (!command.words.empty()) {
      absl::StrAppend(&script, "complete -c ringfill -n '", condition, "' -a '",
                      absl::StrJoin(command.words, " "), "'\n");
    }
  }
  return script;
}

}  // namespace

std::string CompletionScript(const CLI::App& app, Shell shell) {
  const std::vector<CommandFlags> commands = Commands(app);
  std::vector<Flag> global;
  AddFlags(app, global);
  switch (shell) {
    case Shell::kBash:
      return Bash(commands, global);
    case Shell::kZsh:
      return Zsh(commands, global);
    case Shell::kFish:
      return Fish(commands, global);
  }
  return "";
}

}  // namespace ringfill::cli
