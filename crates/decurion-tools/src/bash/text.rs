//! Programs that carry a program: `sed`, `awk`, `jq`. Takes their arguments; says whether the little program
//! given only turns its input into output.

use super::expand::Field;
use super::program::{Call, Flags, Kind, parse};

/// `sed`: addresses and commands that only print, delete or substitute.
pub(crate) fn sed(arguments: &[Field]) -> Call {
    let known = Flags {
        plain: "n E r s u z --quiet --silent --regexp-extended --separate --unbuffered --null-data --posix --sandbox",
        values: "e --expression",
        ..Flags::default()
    };
    let mut parsed = match parse(arguments, known) {
        Ok(parsed) => parsed,
        Err(because) => return Call::other(because),
    };
    let mut scripts: Vec<Field> = Vec::new();
    for (flag, value) in &parsed.flags {
        if flag == "e" || flag == "--expression" {
            scripts.extend(value.clone());
        }
    }
    if scripts.is_empty() {
        if parsed.operands.is_empty() {
            return Call::other("it has no script");
        }
        scripts.push(parsed.operands.remove(0));
    }
    for script in &scripts {
        let harmless =
            script.known().is_some_and(|text| sed_script(&text.chars().collect::<Vec<_>>()).is_some());
        if !harmless {
            return Call::other("its script is not known to be harmless");
        }
    }
    Call::reading(parsed.operands)
}

/// Some where every command of the script is on the list.
fn sed_script(script: &[char]) -> Option<()> {
    let mut at = 0;
    let mut open = 0usize;
    loop {
        while script.get(at).is_some_and(|c| c.is_ascii_whitespace() || *c == ';') {
            at += 1;
        }
        if at >= script.len() {
            return (open == 0).then_some(());
        }
        let first = sed_address(script, at)?;
        let has_address = first > at;
        at = first;
        if has_address && script.get(at) == Some(&',') {
            at += 1;
            if matches!(script.get(at), Some('+' | '~')) {
                at += 1;
            }
            let second = sed_address(script, at)?;
            if second == at {
                return None;
            }
            at = second;
        }
        while script.get(at).is_some_and(|c| *c == ' ' || *c == '!') {
            at += 1;
        }
        match script.get(at)? {
            '{' => {
                open += 1;
                at += 1;
                continue;
            }
            '}' => {
                open = open.checked_sub(1)?;
                at += 1;
            }
            'p' | 'd' | 'D' | 'P' | '=' | 'n' | 'N' | 'g' | 'G' | 'h' | 'H' | 'x' => at += 1,
            'q' | 'Q' => {
                at += 1;
                while script.get(at).is_some_and(char::is_ascii_digit) {
                    at += 1;
                }
            }
            command @ ('s' | 'y') => {
                let delimiter = *script.get(at + 1)?;
                at = sed_delimited(script, at + 2, delimiter)?;
                at = sed_delimited(script, at, delimiter)?;
                if *command == 's' {
                    while script.get(at).is_some_and(|c| c.is_ascii_digit() || "gpiI".contains(*c)) {
                        at += 1;
                    }
                }
            }
            _ => return None,
        }
        while script.get(at) == Some(&' ') {
            at += 1;
        }
        if !matches!(script.get(at), None | Some(';' | '\n' | '}')) {
            return None;
        }
    }
}

/// Where the address at `at` ends, which is `at` where there is none; none where it is not understood.
fn sed_address(script: &[char], at: usize) -> Option<usize> {
    match script.get(at) {
        Some('$') => Some(at + 1),
        Some(c) if c.is_ascii_digit() => {
            let mut end = at;
            while script.get(end).is_some_and(|c| c.is_ascii_digit() || *c == '~') {
                end += 1;
            }
            Some(end)
        }
        Some('/') => {
            let end = sed_delimited(script, at + 1, '/')?;
            Some(end + usize::from(script.get(end) == Some(&'I')))
        }
        Some('\\') => None,
        _ => Some(at),
    }
}

/// The end of a text that `delimiter` closes. What makes implementations disagree is not understood.
fn sed_delimited(script: &[char], mut at: usize, delimiter: char) -> Option<usize> {
    if delimiter.is_alphanumeric() || delimiter.is_whitespace() || "\\;{}[]".contains(delimiter) {
        return None;
    }
    let mut bracket = false;
    loop {
        match *script.get(at)? {
            '\n' => return None,
            '\\' => at += 1,
            '[' => bracket = true,
            ']' => bracket = false,
            // Inside brackets some take it as closing and some do not.
            c if c == delimiter && bracket => return None,
            c if c == delimiter => return Some(at + 1),
            _ => {}
        }
        at += 1;
    }
}

/// `awk`: programs that neither run, nor write, nor open anything.
pub(crate) fn awk(arguments: &[Field]) -> Call {
    let known = Flags { values: "F v", leading: true, ..Flags::default() };
    let mut parsed = match parse(arguments, known) {
        Ok(parsed) => parsed,
        Err(because) => return Call::other(because),
    };
    if parsed.operands.is_empty() {
        return Call::other("it has no script");
    }
    let script = parsed.operands.remove(0);
    if !script.known().is_some_and(awk_script) {
        return Call::other("its script is not known to be harmless");
    }
    // After the script every word is an operand, even one that starts with a dash.
    let assigned = |text: &str| {
        text.split_once('=')
            .map(|(name, _)| name.to_owned())
            .filter(|name| super::syntax::is_identifier(name))
    };
    let values = parsed.flags.iter().filter(|(flag, _)| flag == "v");
    let set = values.filter_map(|(_, value)| value.as_ref()).chain(&parsed.operands);
    if !set.filter_map(Field::known).filter_map(assigned).all(|name| awk_name(&name)) {
        return Call::other("it sets a variable that is not known to be harmless");
    }
    let is_path = |operand: &Field| operand.known().is_none_or(|text| assigned(text).is_none());
    Call::reading(parsed.operands.into_iter().filter(is_path).collect())
}

/// Whether a name may stand in an awk program: what only computes and prints, and variables in small letters.
fn awk_name(name: &str) -> bool {
    const WORDS: &str = "BEGIN END NR NF FNR FS OFS RS ORS SUBSEP FILENAME RSTART RLENGTH";
    const BANNED: &str =
        "system getline close fflush function func delete nextfile strftime extension load include";
    let listed = |list: &str| list.split(' ').any(|word| word == name);
    listed(WORDS)
        || (!listed(BANNED) && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'))
}

fn awk_script(script: &str) -> bool {
    if script.contains('@') {
        return false;
    }
    let chars: Vec<char> = script.chars().collect();
    let (mut at, mut braces, mut parens, mut before) = (0, 0usize, 0usize, '{');
    // Some awks take a `print` as a part of `for`, where what follows is in parentheses as well.
    let mut printing = false;
    while let Some(&c) = chars.get(at) {
        match c {
            '"' => {
                let Some(end) = awk_quoted(&chars, at + 1, '"') else { return false };
                at = end;
            }
            '/' if "{}(,;~!&|\n".contains(before) => {
                let Some(end) = awk_quoted(&chars, at + 1, '/') else { return false };
                at = end;
            }
            '/' if !before.is_ascii_digit() => return false,
            '{' => braces += 1,
            '}' => {
                braces = braces.saturating_sub(1);
                printing = false;
            }
            '\n' if parens == 0 => printing = false,
            '(' => parens += 1,
            ')' => parens = parens.saturating_sub(1),
            // Inside braces it writes to a file, except in parentheses, where it compares.
            '>' if braces > 0 && (parens == 0 || printing) => return false,
            ';' => printing = false,
            '|' if chars.get(at + 1) == Some(&'|') => at += 1,
            '|' | '`' | '#' | '\\' => return false,
            c if c.is_alphabetic() || c == '_' => {
                let rest = chars[at..].iter();
                let name: String = rest.take_while(|c| c.is_alphanumeric() || **c == '_').collect();
                if !awk_name(&name) {
                    return false;
                }
                printing |= matches!(name.as_str(), "print" | "printf");
                at += name.chars().count() - 1;
            }
            _ => {}
        }
        if let Some(last) = chars.get(at).filter(|c| !matches!(c, ' ' | '\t')) {
            // What a regular expression or a string leaves behind is a value.
            before = if c == '"' || (c == '/' && *last == '/') { ')' } else { *last };
        }
        at += 1;
    }
    true
}

/// The index of the closing character.
fn awk_quoted(chars: &[char], mut at: usize, close: char) -> Option<usize> {
    loop {
        match *chars.get(at)? {
            '\\' => at += 1,
            '\n' => return None,
            // A slash inside brackets closes for some and not for others.
            '[' if close == '/' => return awk_bracket(chars, at, close),
            c if c == close => return Some(at),
            _ => {}
        }
        at += 1;
    }
}

fn awk_bracket(chars: &[char], mut at: usize, close: char) -> Option<usize> {
    // The first character after `[` or `[^` is literal even if it is `]`.
    at += 1;
    if chars.get(at) == Some(&'^') {
        at += 1;
    }
    at += 1;
    while *chars.get(at)? != ']' {
        if matches!(chars[at], '/' | '\\' | '\n' | '[') {
            return None;
        }
        at += 1;
    }
    if chars[at - 1] == '/' {
        return None;
    }
    awk_quoted(chars, at + 1, close)
}

/// `jq`, without modules, files by flag, or the environment.
pub(crate) fn jq(arguments: &[Field]) -> Call {
    let known = Flags {
        plain: "r c n s S e a j M C R --raw-output --compact-output --null-input --slurp --sort-keys --exit-status \
            --ascii-output --join-output --monochrome-output --color-output --raw-input --tab --stream --seq",
        values: "--indent",
        ..Flags::default()
    };
    let mut kept = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument.known() == Some("--") {
            kept.push(argument.clone());
            kept.extend(rest.cloned());
            break;
        }
        if matches!(argument.known(), Some("--arg" | "--argjson")) {
            let values = [rest.next(), rest.next()];
            if values.iter().any(|value| !value.is_some_and(Field::is_one_word)) {
                return Call::other("its words are not known");
            }
            continue;
        }
        kept.push(argument.clone());
    }
    let mut parsed = match parse(&kept, known) {
        Ok(parsed) => parsed,
        Err(because) => return Call::other(because),
    };
    if parsed.operands.is_empty() {
        return Call::other("it has no program");
    }
    let program = parsed.operands.remove(0);
    let words = |text: &str| {
        text.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| {
            matches!(word, "env" | "ENV" | "import" | "include" | "modulemeta" | "input_filename")
        })
    };
    match program.known() {
        Some(text) if !words(text) => Call { kind: Kind::Reads, reads: parsed.operands, ..Call::default() },
        _ => Call::other("its program is not known to be harmless"),
    }
}
