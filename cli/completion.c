// Prints completion scripts for shells. A script contains all words itself, so that pressing Tab does not
// start the program. After an update of the program, print the script again.
#include <string.h>

#include "cli/help.h"
#include "options/config.h"
#include "options/print.h"

// ---- bash and zsh

// zsh runs the bash functions through bashcompinit.
static const char zsh_begin[] = "autoload -U +X bashcompinit && bashcompinit\n";

// Completes the current word. The script that print_bash prints before this function defines what it uses:
// $_zero_train_commands, $_zero_train_options, _zero_train_flags and _zero_train_values. bash splits an
// argument OPTION=VALUE at "=". So $key, the option, is the word before the "=", and only the value is
// completed.
static const char bash_function[] =
    "_zero_train() {\n"
    "  local IFS=$' \\t\\n' cur=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} key= before=\n"
    "  COMPREPLY=()\n"
    "  if [ \"$cur\" = = ]; then\n"
    "    key=${COMP_WORDS[COMP_CWORD-1]} cur=\n"
    "  elif [ \"${COMP_WORDS[COMP_CWORD-1]}\" = = ]; then\n"
    "    key=${COMP_WORDS[COMP_CWORD-2]}\n"
    "  elif [[ $cur == *=* ]]; then\n"
    "    key=${cur%%=*} before=${cur%%=*}= cur=${cur#*=}\n"
    "  fi\n"
    "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
    "    COMPREPLY=($(compgen -W \"$_zero_train_commands\" -- \"$cur\") $(compgen -f -X '!*.json' -- "
    "\"$cur\")\n"
    "               $(compgen -d -S / -- \"$cur\"))\n"
    "    compopt -o nospace 2>/dev/null\n"
    "    [ ${#COMPREPLY[@]} -eq 1 ] && [[ ${COMPREPLY[0]} != */ ]] && COMPREPLY[0]+=' '\n"
    "    return\n"
    "  fi\n"
    "  if [[ $command == *.json ]]; then\n"
    "    command=train\n"
    "  fi\n"
    "  if [ -n \"$key\" ]; then\n"
    "    COMPREPLY=($(compgen -P \"$before\" -W \"$(_zero_train_values \"$key\")\" -- \"$cur\"))\n"
    "    [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -P \"$before\" -f -- \"$cur\"))\n"
    "  elif [[ $cur == -* ]]; then\n"
    "    COMPREPLY=($(compgen -W \"$(_zero_train_flags \"$command\")\" -- \"$cur\"))\n"
    "  else\n"
    "    case $command in\n"
    "      help) COMPREPLY=($(compgen -W \"$_zero_train_commands\" -- \"$cur\")) ;;\n"
    "      completion) COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$cur\")) ;;\n"
    "      train | check | plan)\n"
    "        COMPREPLY=($(compgen -W \"$_zero_train_options\" -- \"$cur\"))\n"
    "        [ ${#COMPREPLY[@]} -gt 0 ] && compopt -o nospace 2>/dev/null\n"
    "        ;;\n"
    "    esac\n"
    "    [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- \"$cur\"))\n"
    "  fi\n"
    "}\n"
    "complete -o filenames -F _zero_train train\n";

static void print_bash(const struct command_list *list) {
    struct option_words option;
    printf("_zero_train_commands='");
    for (int i = 0; i < list->n; i++)
        printf("%s%s", i ? " " : "", list->commands[i]->name);
    printf("'\n_zero_train_options='");
    for (int i = 0; config_option_words(i, &option); i++)
        printf("%s%s=", i ? " " : "", option.name);
    printf("'\n_zero_train_flags() {\n  case $1 in\n");
    for (int i = 0; i < list->n; i++) {
        const struct command *command = list->commands[i];
        printf("    %s) echo", command->name);
        for (int k = 0; k < command->n_flags; k++)
            printf(" %s", command->flags[k].name);
        printf(" --help ;;\n");
    }
    printf("  esac\n}\n_zero_train_values() {\n  case $1 in\n");
    for (int i = 0; config_option_words(i, &option); i++) {
        if (option.n == 0)
            continue;
        printf("    %s) echo", option.name);
        for (int k = 0; k < option.n; k++)
            printf(" %s", option.values[k]);
        printf(" ;;\n");
    }
    printf("  esac\n}\n%s", bash_function);
}

// ---- fish

// Prints a word in single quotes. In these, fish interprets only \\ and \', so ' and \ are escaped.
static void print_fish_word(const char *word) {
    printf("'");
    for (const char *c = word; *c; c++)
        printf("%s%c", *c == '\'' || *c == '\\' ? "\\" : "", *c);
    printf("'");
}

// configured: the command's name may be omitted before a configuration
static void print_fish_flags(const struct command *command, bool configured) {
    for (int i = 0; i < command->n_flags; i++) {
        const struct arg *flag = &command->flags[i];
        printf("complete -c train -n '%s%s' -l %s%s -d ",
               configured ? "__zero_train_configured; and not __fish_seen_subcommand_from check plan"
                          : "__fish_seen_subcommand_from ",
               configured ? "" : command->name, flag->name + 2, args_placeholder(flag)[0] ? " -r" : "");
        print_fish_word(flag->help);
        printf("\n");
    }
}

static void print_fish(const struct command_list *list) {
    struct option_words option;
    for (int i = 0; i < list->n; i++) {
        printf("complete -c train -n __fish_use_subcommand -a %s -d ", list->commands[i]->name);
        print_fish_word(list->commands[i]->summary);
        printf("\n");
        print_fish_flags(list->commands[i], list->commands[i] == list->initial);
    }
    printf("complete -c train -f -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'\n"
           "complete -c train -f -n '__fish_seen_subcommand_from help' -a '");
    for (int i = 0; i < list->n; i++)
        printf("%s%s", i ? " " : "", list->commands[i]->name);
    printf("'\n"
           "function __zero_train_configured\n"
           "  string match -qr '\\\\.json$|^train$|^check$|^plan$' -- (commandline -opc)[2..]\n"
           "end\n");
    for (int i = 0; config_option_words(i, &option); i++) {
        printf("complete -c train -n __zero_train_configured -a '%s=", option.name);
        for (int k = 0; k < option.n; k++) // fish completes the whole word OPTION=VALUE
            printf(" %s=%s", option.name, option.values[k]);
        printf("'\n");
    }
}

enum status help_completion(const struct command_list *list, int n_args, char **args) {
    const char *shell;
    int n_shells;
    TRY(args_parse("completion", NULL, 0, n_args, args, &shell, 1, &n_shells));
    const bool zsh = n_shells && strcmp(shell, "zsh") == 0, bash = n_shells && strcmp(shell, "bash") == 0;
    if (!bash && !zsh && !(n_shells && strcmp(shell, "fish") == 0))
        return FAIL(STATUS_INVALID,
                    "train completion: expected the name of a shell, bash, zsh or fish; for bash, add to "
                    "~/.bashrc: source <(PATH_OF/train completion bash)");
    printf("%s", zsh ? zsh_begin : "");
    (bash || zsh ? print_bash : print_fish)(list);
    return STATUS_OK;
}
