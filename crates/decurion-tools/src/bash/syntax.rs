//! The grammar of bash. Takes a shell text; gives its commands as a tree, or the first thing in it that is
//! not understood together with what was understood before.
//!
//! The parser is strict on purpose: it accepts less than bash does, never more, and never reads a text
//! differently from bash. What is rare and hard to get right (arrays, extended globs, indirect expansion)
//! is a [`Doubt`], and a doubtful text is asked about.

/// Why a text is not understood.
pub(crate) type Doubt = String;

/// Texts nested deeper than this are not followed.
pub(crate) const MAX_DEPTH: usize = 40;

/// A list of commands.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Script {
    pub lists: Vec<AndOr>,
}

/// Pipelines joined by `&&` and `||`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AndOr {
    pub first: Vec<Command>,
    /// The others, each with whether it runs on success (`&&`) of what is before it.
    pub rest: Vec<(bool, Vec<Command>)>,
    /// Whether `&` ends it: then it runs in a shell of its own, beside what follows.
    pub background: bool,
    /// Whether `!` stands before one of them, so that success means failure.
    pub negated: bool,
}

/// A command with its redirections.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Command {
    pub body: Body,
    /// Where its input and output go.
    pub redirects: Vec<Redirect>,
}

/// The kinds of command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body {
    Simple {
        assigns: Vec<Assign>,
        words: Vec<Word>,
    },
    Subshell(Script),
    Group(Script),
    /// `if`: conditions and branches in the order they are written.
    If(Vec<Script>),
    Loop(Script, Script),
    /// `for name in …`.
    For {
        name: String,
        words: Option<Vec<Word>>,
        body: Script,
    },
    ForArithmetic(Arithmetic, Script),
    Case {
        subject: Word,
        patterns: Vec<Word>,
        branches: Vec<Script>,
    },
    Test(Vec<Word>),
    Arithmetic(Arithmetic),
    Function(Box<Command>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Assign {
    pub name: String,
    /// Whether it is appended to.
    pub append: bool,
    pub value: Word,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Redirect {
    pub kind: RedirectKind,
    /// The file, descriptor or delimiter; the text of a here-string.
    pub target: Word,
    /// Where a here-document's body is in [`Parsed::bodies`].
    pub body: Option<usize>,
}

/// What a redirection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedirectKind {
    Read,
    /// `>`, `>>`, `>|`, `&>`, `&>>`, `>&file`.
    Write,
    ReadWrite,
    Duplicate,
    HereDocument,
    HereString,
}

/// One word, before expansion.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Word {
    pub parts: Vec<Part>,
    /// As it is written.
    pub source: String,
}

/// A part of a word.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// Characters that stand for themselves.
    Text {
        text: String,
        quoted: bool,
    },
    Ansi(String),
    /// An unquoted `*`, `?` or `[`.
    Glob(char),
    /// An unquoted `{`, `,` or `}`.
    Mark(char),
    /// `~` or `~name` where bash expands it.
    Tilde(String),
    Param(Param),
    Command {
        script: Script,
        quoted: bool,
    },
    Process(Script),
    Arithmetic(Arithmetic),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Param {
    pub name: String,
    pub quoted: bool,
    /// Whether its value is used as it is.
    pub plain: bool,
    /// What is in its modifier.
    pub nested: Vec<Part>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Arithmetic {
    pub text: String,
    /// The expansions in it.
    pub nested: Vec<Part>,
}

/// What came of parsing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parsed {
    /// The commands, as far as they were understood.
    pub script: Script,
    /// The bodies of here-documents.
    pub bodies: Vec<Word>,
    /// What was not understood.
    pub doubt: Option<Doubt>,
    /// Whether all commands were found although there is a doubt: it is only about values.
    pub complete: bool,
}

impl Word {
    /// The word's text when nothing in it is quoted or expanded: keywords are recognised by this.
    pub fn bare(&self) -> Option<String> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text { text: piece, quoted: false } => text.push_str(piece),
                Part::Glob(mark) | Part::Mark(mark) => text.push(*mark),
                _ => return None,
            }
        }
        Some(text)
    }
}

/// Parses a whole text.
pub(crate) fn parse(text: &str) -> Parsed {
    parse_nested(text, 0)
}

fn parse_nested(text: &str, depth: usize) -> Parsed {
    let mut parser = Parser::new(text, depth);
    let mut script = Script::default();
    let result = parser.list(&mut script, End::Text);
    let doubt = match result {
        Ok(()) if !parser.pending.is_empty() => Some("a here-document has no body".to_owned()),
        Ok(()) => None,
        Err(doubt) => Some(doubt),
    };
    let complete = doubt.is_none();
    let doubt = doubt.or(parser.value_doubt.map(str::to_owned));
    Parsed { script, bodies: parser.bodies, doubt, complete }
}

/// What ends a list.
#[derive(Clone, Copy, PartialEq)]
enum End {
    /// The end of the text.
    Text,
    Paren,
    /// One of these words.
    Words(&'static [&'static str]),
    /// `;;`, `;&`, `;;&` or `esac`.
    Case,
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    depth: usize,
    pending: Vec<Pending>,
    bodies: Vec<Word>,
    /// A doubt about values that does not keep the text from being taken apart.
    value_doubt: Option<&'static str>,
}

/// A here-document whose body is still to come.
struct Pending {
    delimiter: String,
    quoted: bool,
    tabs: bool,
    body: usize,
}

type Parse<T> = Result<T, Doubt>;

fn doubt<T>(text: &str) -> Parse<T> {
    Err(text.to_owned())
}

fn is_meta(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '|' | '&' | ';' | '(' | ')' | '<' | '>')
}

fn is_name_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

impl Parser {
    fn new(text: &str, depth: usize) -> Self {
        Self {
            chars: text.chars().collect(),
            at: 0,
            depth,
            pending: Vec::new(),
            bodies: Vec::new(),
            value_doubt: None,
        }
    }

    /// The next character, as it stands.
    fn raw(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    /// The next character after any line continuations.
    fn next(&mut self) -> Option<char> {
        while self.raw() == Some('\\') && self.chars.get(self.at + 1) == Some(&'\n') {
            self.at += 2;
        }
        self.raw()
    }

    /// The character after the next one, after any line continuations between them.
    fn second(&mut self) -> Option<char> {
        let start = self.at;
        let found = self.next().and_then(|_| {
            self.at += 1;
            self.next()
        });
        self.at = start;
        found
    }

    fn take(&mut self, wanted: char) -> bool {
        if self.next() == Some(wanted) {
            self.at += 1;
            return true;
        }
        false
    }

    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Parse<T>) -> Parse<T> {
        if self.depth >= MAX_DEPTH {
            return doubt("the text is nested too deeply");
        }
        self.depth += 1;
        let result = work(self);
        self.depth -= 1;
        result
    }

    fn blanks(&mut self) {
        while matches!(self.next(), Some(' ' | '\t')) {
            self.at += 1;
        }
        if self.raw() == Some('#') {
            while self.raw().is_some_and(|c| c != '\n') {
                self.at += 1;
            }
        }
    }

    /// Blanks, comments and newlines.
    fn gap(&mut self) -> Parse<()> {
        loop {
            self.blanks();
            if self.raw() != Some('\n') {
                return Ok(());
            }
            self.newline()?;
        }
    }

    fn newline(&mut self) -> Parse<()> {
        self.at += 1;
        for pending in std::mem::take(&mut self.pending) {
            self.here_body(&pending)?;
        }
        Ok(())
    }

    /// The bare word that stands here, if it is a short one: keywords are looked for with this.
    fn keyword(&mut self) -> Option<String> {
        let start = self.at;
        let mut word = String::new();
        while let Some(c) = self.next() {
            if is_meta(c) {
                break;
            }
            if word.len() >= 9 || !(c.is_ascii_lowercase() || "{}![]".contains(c)) {
                word.clear();
                break;
            }
            word.push(c);
            self.at += 1;
        }
        self.at = start;
        (!word.is_empty()).then_some(word)
    }

    fn skip_keyword(&mut self, length: usize) {
        for _ in 0..length {
            self.next();
            self.at += 1;
        }
    }

    fn expect_keyword(&mut self, wanted: &str) -> Parse<()> {
        self.gap()?;
        if self.keyword().as_deref() == Some(wanted) {
            self.skip_keyword(wanted.len());
            return Ok(());
        }
        Err(format!("`{wanted}` is missing"))
    }

    /// A list up to `end`, which is not consumed. What was parsed before a doubt stays in `script`.
    fn list(&mut self, script: &mut Script, end: End) -> Parse<()> {
        loop {
            self.gap()?;
            if self.at_end(end)? {
                return Ok(());
            }
            let mut item = AndOr { first: Vec::new(), rest: Vec::new(), background: false, negated: false };
            let result = self.and_or(&mut item);
            if !item.first.is_empty() {
                script.lists.push(item);
            }
            result?;
            self.blanks();
            match self.next() {
                Some('\n') | None => {}
                Some(';') if self.second() == Some(';') || self.second() == Some('&') => {
                    return if end == End::Case { Ok(()) } else { doubt("an unexpected `;;`") };
                }
                Some(mark @ (';' | '&')) => {
                    self.at += 1;
                    if let Some(last) = script.lists.last_mut() {
                        last.background = mark == '&';
                    }
                }
                Some(')') if end == End::Paren => {}
                Some(_) if matches!(end, End::Words(_) | End::Case) && self.at_end(end)? => {}
                Some(_) => return doubt("something unexpected follows a command"),
            }
        }
    }

    fn at_end(&mut self, end: End) -> Parse<bool> {
        let Some(next) = self.next() else {
            return if end == End::Text { Ok(true) } else { doubt("the text ends too early") };
        };
        match end {
            End::Text => Ok(false),
            End::Paren => Ok(next == ')'),
            End::Words(words) => Ok(self.keyword().is_some_and(|word| words.contains(&word.as_str()))),
            End::Case => Ok((next == ';' && matches!(self.second(), Some(';' | '&')))
                || self.keyword().as_deref() == Some("esac")),
        }
    }

    fn and_or(&mut self, item: &mut AndOr) -> Parse<()> {
        self.pipeline(&mut item.first, &mut item.negated)?;
        loop {
            self.blanks();
            let on_success = match (self.next(), self.second()) {
                (Some('&'), Some('&')) => true,
                (Some('|'), Some('|')) => false,
                _ => return Ok(()),
            };
            self.next();
            self.at += 1;
            self.next();
            self.at += 1;
            self.gap()?;
            let mut stages = Vec::new();
            let result = self.pipeline(&mut stages, &mut item.negated);
            if !stages.is_empty() {
                item.rest.push((on_success, stages));
            }
            result?;
        }
    }

    fn pipeline(&mut self, stages: &mut Vec<Command>, negated: &mut bool) -> Parse<()> {
        loop {
            self.blanks();
            match self.keyword().as_deref() {
                Some("!") => {
                    self.skip_keyword(1);
                    *negated = true;
                }
                Some("time") => self.time()?,
                _ => break,
            }
        }
        loop {
            stages.push(self.command()?);
            self.blanks();
            if self.next() != Some('|') || self.second() == Some('|') {
                return Ok(());
            }
            self.at += 1;
            self.take('&');
            self.gap()?;
        }
    }

    /// `time`, which as a keyword has only the option `-p`.
    fn time(&mut self) -> Parse<()> {
        self.skip_keyword(4);
        self.blanks();
        match self.next() {
            None | Some('\n' | ';' | '&' | '|' | ')') => doubt("`time` without a command"),
            Some('-') => doubt("`time` with an option"),
            _ => Ok(()),
        }
    }

    fn command(&mut self) -> Parse<Command> {
        self.blanks();
        let body = match self.next() {
            Some('(') if self.second() == Some('(') => self.deeper(Self::arithmetic_command)?,
            Some('(') => self.deeper(Self::subshell)?,
            _ => match self.keyword().as_deref() {
                Some("{") => self.deeper(Self::group)?,
                Some("if") => self.deeper(Self::conditional)?,
                Some(word @ ("while" | "until")) => {
                    let length = word.len();
                    self.deeper(|parser| parser.repetition(length))?
                }
                Some("for") => self.deeper(Self::each)?,
                Some("case") => self.deeper(Self::case)?,
                Some("[[") => self.deeper(Self::test)?,
                Some("function") => return self.deeper(Self::function_keyword),
                Some(
                    word @ ("then" | "do" | "done" | "fi" | "elif" | "else" | "esac" | "in" | "}" | "]]"
                    | "select" | "coproc" | "!" | "time"),
                ) => return Err(format!("`{word}` where a command should be")),
                _ => return self.simple(),
            },
        };
        let mut redirects = Vec::new();
        loop {
            self.blanks();
            if !self.at_redirect() {
                break;
            }
            redirects.push(self.redirect()?);
        }
        Ok(Command { body, redirects })
    }

    fn subshell(&mut self) -> Parse<Body> {
        self.at += 1;
        let script = self.paren_list()?;
        if script.lists.is_empty() {
            return doubt("an empty list of commands");
        }
        Ok(Body::Subshell(script))
    }

    /// A list and its `)`.
    fn paren_list(&mut self) -> Parse<Script> {
        let (pending, bodies) = (self.pending.len(), self.bodies.len());
        let mut script = Script::default();
        self.list(&mut script, End::Paren)?;
        self.at += 1;
        // Some versions of bash lose a separator after a here-document inside a substitution, so only one that
        // stands alone is understood.
        let alone = |list: &AndOr| {
            list.rest.is_empty()
                && matches!(list.first.as_slice(), [Command { body: Body::Simple { .. }, .. }])
        };
        if self.bodies.len() > bodies && !matches!(script.lists.as_slice(), [only] if alone(only)) {
            return doubt("a here-document beside other commands inside parentheses");
        }
        if self.pending.len() > pending {
            return doubt("a here-document whose body lies outside its command");
        }
        Ok(script)
    }

    fn group(&mut self) -> Parse<Body> {
        self.skip_keyword(1);
        let script = self.until(&["}"])?;
        self.expect_keyword("}")?;
        Ok(Body::Group(script))
    }

    fn until(&mut self, words: &'static [&'static str]) -> Parse<Script> {
        let mut script = Script::default();
        self.list(&mut script, End::Words(words))?;
        if script.lists.is_empty() {
            return doubt("an empty list of commands");
        }
        Ok(script)
    }

    fn conditional(&mut self) -> Parse<Body> {
        self.skip_keyword(2);
        let mut scripts = vec![self.until(&["then"])?];
        self.expect_keyword("then")?;
        loop {
            scripts.push(self.until(&["elif", "else", "fi"])?);
            match self.keyword().as_deref() {
                Some("elif") => {
                    self.skip_keyword(4);
                    scripts.push(self.until(&["then"])?);
                    self.expect_keyword("then")?;
                }
                Some("else") => {
                    self.skip_keyword(4);
                    scripts.push(self.until(&["fi"])?);
                    self.expect_keyword("fi")?;
                    return Ok(Body::If(scripts));
                }
                _ => {
                    self.expect_keyword("fi")?;
                    return Ok(Body::If(scripts));
                }
            }
        }
    }

    fn repetition(&mut self, length: usize) -> Parse<Body> {
        self.skip_keyword(length);
        let condition = self.until(&["do"])?;
        let body = self.do_done()?;
        Ok(Body::Loop(condition, body))
    }

    fn do_done(&mut self) -> Parse<Script> {
        self.expect_keyword("do")?;
        let body = self.until(&["done"])?;
        self.expect_keyword("done")?;
        Ok(body)
    }

    fn each(&mut self) -> Parse<Body> {
        self.skip_keyword(3);
        self.blanks();
        if self.next() == Some('(') && self.second() == Some('(') {
            let arithmetic = self.double_paren()?;
            self.blanks();
            self.take(';');
            return Ok(Body::ForArithmetic(arithmetic, self.do_done()?));
        }
        let name = self.word()?.bare().filter(|name| is_identifier(name));
        let Some(name) = name else { return doubt("a `for` without a variable") };
        self.gap()?;
        let mut words = None;
        if self.keyword().as_deref() == Some("in") {
            self.skip_keyword(2);
            let mut list = Vec::new();
            loop {
                self.blanks();
                match self.next() {
                    Some(';' | '\n') => break,
                    Some('<' | '>') if self.second() == Some('(') => list.push(self.word()?),
                    Some(c) if is_meta(c) => return doubt("something unexpected in a `for`"),
                    None => return doubt("the text ends inside a `for`"),
                    Some(_) => list.push(self.word()?),
                }
            }
            words = Some(list);
        }
        self.blanks();
        if self.next() == Some(';') {
            self.at += 1;
        }
        let body = self.do_done()?;
        Ok(Body::For { name, words, body })
    }

    fn case(&mut self) -> Parse<Body> {
        self.skip_keyword(4);
        self.blanks();
        let subject = self.word()?;
        self.expect_keyword("in")?;
        let (mut patterns, mut branches) = (Vec::new(), Vec::new());
        loop {
            self.gap()?;
            if self.keyword().as_deref() == Some("esac") {
                self.skip_keyword(4);
                return Ok(Body::Case { subject, patterns, branches });
            }
            self.take('(');
            loop {
                self.blanks();
                patterns.push(self.word()?);
                self.blanks();
                if self.take(')') {
                    break;
                }
                if !self.take('|') {
                    return doubt("a pattern of a `case` is not closed");
                }
            }
            let mut script = Script::default();
            self.list(&mut script, End::Case)?;
            branches.push(script);
            while matches!(self.next(), Some(';' | '&')) {
                self.at += 1;
            }
        }
    }

    /// `[[ … ]]`: the words and operators up to `]]`.
    fn test(&mut self) -> Parse<Body> {
        self.skip_keyword(2);
        let mut words = Vec::new();
        loop {
            self.blanks();
            match self.next() {
                None => return doubt("`[[` is not closed"),
                Some('\n') => self.newline()?,
                Some('<' | '>') if self.second() == Some('(') => words.push(self.word()?),
                Some('(' | ')' | '<' | '>') => self.at += 1,
                Some('&') if self.second() == Some('&') => self.skip_keyword(2),
                Some('|') if self.second() == Some('|') => self.skip_keyword(2),
                Some('&' | '|' | ';') => return doubt("an unexpected operator inside `[[`"),
                Some(_) => {
                    let word = self.word()?;
                    if matches!(self.next(), Some('(' | '|')) {
                        return doubt("a pattern with parentheses inside `[[`");
                    }
                    match word.bare().as_deref() {
                        Some("]]") => return Ok(Body::Test(words)),
                        Some("=~") => {
                            self.blanks();
                            if matches!(self.next(), Some('(' | '|')) {
                                return doubt("a pattern with parentheses inside `[[`");
                            }
                        }
                        _ => {}
                    }
                    words.push(word);
                }
            }
        }
    }

    fn arithmetic_command(&mut self) -> Parse<Body> {
        Ok(Body::Arithmetic(self.double_paren()?))
    }

    /// `((…))`, at its first parenthesis.
    fn double_paren(&mut self) -> Parse<Arithmetic> {
        self.at += 1;
        self.next();
        self.at += 1;
        self.arithmetic()
    }

    /// The rest of an arithmetic expression after `((`, with its `))`.
    fn arithmetic(&mut self) -> Parse<Arithmetic> {
        let mut found = Arithmetic::default();
        let mut open = 0usize;
        loop {
            match self.next() {
                None => return doubt("an arithmetic expression is not closed"),
                Some('(') => open += 1,
                Some(')') if open > 0 => open -= 1,
                Some(')') => {
                    self.at += 1;
                    if self.take(')') {
                        return Ok(found);
                    }
                    return doubt("`((` that may or may not be arithmetic");
                }
                Some('$' | '`') => {
                    let part = self.deeper(|parser| parser.expansion(true))?;
                    found.nested.push(part);
                    continue;
                }
                Some('\'' | '"' | '[' | ']' | '\\' | '#' | '{' | '}') => {
                    return doubt("an arithmetic expression with quotes or subscripts");
                }
                Some('\n') if !self.pending.is_empty() => {
                    return doubt("a here-document begins inside an expression");
                }
                Some(c) => found.text.push(c),
            }
            self.at += 1;
        }
    }

    fn function_keyword(&mut self) -> Parse<Command> {
        self.skip_keyword(8);
        self.blanks();
        self.word()?;
        self.blanks();
        if self.take('(') {
            self.blanks();
            if !self.take(')') {
                return doubt("a function's definition is not understood");
            }
        }
        self.function_body()
    }

    fn function_body(&mut self) -> Parse<Command> {
        self.gap()?;
        let body = self.deeper(Self::command)?;
        Ok(Command { body: Body::Function(Box::new(body)), redirects: Vec::new() })
    }

    fn simple(&mut self) -> Parse<Command> {
        let (mut assigns, mut words, mut redirects) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            self.blanks();
            if self.at_redirect() {
                redirects.push(self.redirect()?);
                continue;
            }
            match self.next() {
                Some('<' | '>') => {}
                Some('(') if words.len() == 1 && assigns.is_empty() && redirects.is_empty() => {
                    self.at += 1;
                    self.blanks();
                    if !self.take(')') {
                        return doubt("an unexpected `(`");
                    }
                    return self.function_body();
                }
                Some('(') => return doubt("an unexpected `(`"),
                None => break,
                Some(c) if is_meta(c) => break,
                Some(_) => {}
            }
            let word = self.word()?;
            if words.is_empty()
                && let Some(assign) = assignment(&word)?
            {
                if self.next() == Some('(') {
                    let elements = self.array()?.into_iter();
                    assigns.extend(elements.map(|value| Assign { value, ..assign.clone() }));
                }
                assigns.push(assign);
                continue;
            }
            let declares = word.source.ends_with('=') && self.next() == Some('(');
            words.push(word);
            if declares {
                words.extend(self.array()?);
            }
        }
        if assigns.is_empty() && words.is_empty() && redirects.is_empty() {
            return doubt("a command is missing");
        }
        Ok(Command { body: Body::Simple { assigns, words }, redirects })
    }

    /// Whether a redirection stands here, perhaps after its descriptor's number.
    fn at_redirect(&mut self) -> bool {
        let start = self.at;
        while self.next().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let numbered = self.at > start;
        let found = match self.next() {
            Some('<' | '>') => self.second() != Some('('),
            Some('&') => !numbered && self.second() == Some('>'),
            _ => false,
        };
        self.at = start;
        found
    }

    fn redirect(&mut self) -> Parse<Redirect> {
        while self.next().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let first = self.next();
        self.at += 1;
        let mut copies = false;
        let kind = match first {
            Some('&') => {
                self.next();
                self.at += 1;
                self.take('>');
                RedirectKind::Write
            }
            Some('>') => {
                copies = self.take('&');
                if !copies && !self.take('>') {
                    self.take('|');
                }
                RedirectKind::Write
            }
            _ if self.take('<') => {
                if self.take('<') {
                    RedirectKind::HereString
                } else {
                    let tabs = self.take('-');
                    return self.here_document(tabs);
                }
            }
            _ if self.take('>') => RedirectKind::ReadWrite,
            _ => {
                copies = self.take('&');
                RedirectKind::Read
            }
        };
        self.blanks();
        match self.next() {
            None => return doubt("a redirection without a target"),
            Some('<' | '>') if self.second() == Some('(') => {}
            Some(c) if is_meta(c) => return doubt("a redirection without a target"),
            Some(_) => {}
        }
        let target = self.word()?;
        // After `>&` and `<&` bash takes the dash by itself, and what follows it as an argument of the command.
        let dashed = target.bare().is_some_and(|text| text.starts_with('-') && text != "-");
        if dashed && kind != RedirectKind::HereString {
            return doubt("a redirection to a word that begins with a dash");
        }
        let kind = if copies { copy_kind(kind, &target)? } else { kind };
        Ok(Redirect { kind, target, body: None })
    }

    fn here_document(&mut self, tabs: bool) -> Parse<Redirect> {
        self.blanks();
        match self.next() {
            None => return doubt("a here-document without a delimiter"),
            Some(c) if is_meta(c) => return doubt("a here-document without a delimiter"),
            Some(_) => {}
        }
        let target = self.word()?;
        let (mut delimiter, mut quoted) = (String::new(), false);
        for part in &target.parts {
            match part {
                Part::Text { text, quoted: here } => {
                    delimiter.push_str(text);
                    quoted |= here;
                }
                Part::Mark(mark) | Part::Glob(mark) => delimiter.push(*mark),
                _ => return doubt("a here-document's delimiter is not plain"),
            }
        }
        // Where it is quoted the body stands for itself, so only what is surely quoted or surely not is understood: bash
        // takes a line that is continued inside the delimiter for neither.
        let plain = |quote: &str| target.source == format!("{quote}{delimiter}{quote}");
        if !is_identifier(&delimiter) || !(plain("") || plain("'") || plain("\"")) {
            return doubt("a here-document's delimiter is not plain");
        }
        let body = self.bodies.len();
        self.bodies.push(Word::default());
        self.pending.push(Pending { delimiter, quoted, tabs, body });
        Ok(Redirect { kind: RedirectKind::HereDocument, target, body: Some(body) })
    }

    fn here_body(&mut self, pending: &Pending) -> Parse<()> {
        let mut body = String::new();
        loop {
            if self.raw().is_none() {
                return doubt("a here-document is not closed");
            }
            let mut line = String::new();
            while let Some(c) = self.raw() {
                self.at += 1;
                if c == '\n' {
                    break;
                }
                line.push(c);
            }
            let shown = if pending.tabs { line.trim_start_matches('\t') } else { line.as_str() };
            if shown == pending.delimiter {
                break;
            }
            if !pending.quoted && shown.ends_with('\\') {
                return doubt("a line of a here-document is continued");
            }
            body.push_str(shown);
            body.push('\n');
        }
        let parts = if pending.quoted {
            vec![Part::Text { text: body.clone(), quoted: true }]
        } else {
            let mut inner = Self::new(&body, self.depth + 1);
            if inner.depth > MAX_DEPTH {
                return doubt("the text is nested too deeply");
            }
            let parts = inner.quoted_parts(None)?;
            if !inner.bodies.is_empty() {
                return doubt("a here-document inside a here-document");
            }
            parts
        };
        self.bodies[pending.body] = Word { parts, source: body };
        Ok(())
    }

    /// One word. Called where one begins.
    fn word(&mut self) -> Parse<Word> {
        let start = self.at;
        let lines = self.pending.len();
        let mut parts: Vec<Part> = Vec::new();
        while let Some(c) = self.next() {
            match c {
                '<' | '>' if self.second() == Some('(') => {
                    self.at += 1;
                    self.next();
                    self.at += 1;
                    let script = self.deeper(Self::paren_list)?;
                    if script.lists.is_empty() {
                        // Bash makes no pipe for it, and no word.
                        return doubt("a process substitution without a command");
                    }
                    parts.push(Part::Process(script));
                }
                _ if is_meta(c) => break,
                '\'' => {
                    self.at += 1;
                    let text = self.single_quoted()?;
                    push_text(&mut parts, &text, true);
                }
                '"' => {
                    self.at += 1;
                    let inner = self.quoted_parts(Some('"'))?;
                    if inner.is_empty() {
                        push_text(&mut parts, "", true);
                    }
                    parts.extend(inner);
                }
                '\\' => {
                    self.at += 1;
                    let escaped = self.raw().unwrap_or('\\');
                    self.at += usize::from(self.raw().is_some());
                    push_text(&mut parts, escaped.encode_utf8(&mut [0; 4]), true);
                }
                '$' | '`' => {
                    let part = self.deeper(|parser| parser.expansion(false))?;
                    match part {
                        Part::Text { text, quoted } => push_text(&mut parts, &text, quoted),
                        part => parts.push(part),
                    }
                }
                '*' | '?' | '[' => {
                    self.at += 1;
                    parts.push(Part::Glob(c));
                }
                '{' | '}' | ',' => {
                    self.at += 1;
                    parts.push(Part::Mark(c));
                }
                '~' if parts.is_empty() || tilde_follows(&parts) => {
                    self.at += 1;
                    parts.push(self.tilde());
                }
                _ => {
                    self.at += 1;
                    push_text(&mut parts, c.encode_utf8(&mut [0; 4]), false);
                }
            }
        }
        let source: String = self.chars[start..self.at].iter().collect();
        if lines > 0 && source.contains('\n') {
            return doubt("a here-document begins inside a word");
        }
        if parts.is_empty() {
            return doubt("a word is missing");
        }
        // `{name}>` and `{name[subscript]}>`: bash evaluates the subscript, whatever is quoted in it.
        if matches!(self.next(), Some('<' | '>')) && source.replace("\\\n", "").starts_with('{') {
            return doubt("a redirection through a named descriptor");
        }
        Ok(Word { parts, source })
    }

    fn tilde(&mut self) -> Part {
        let mut name = String::new();
        while let Some(c) = self.next() {
            if !(is_name(c) || "-+.".contains(c)) {
                break;
            }
            name.push(c);
            self.at += 1;
        }
        // Anything else before the slash is part of a user's name, or stops the expansion: not worth following.
        if self.next().is_some_and(|c| !is_meta(c) && c != '/' && c != ':') {
            name.push('?');
        }
        Part::Tilde(name)
    }

    fn single_quoted(&mut self) -> Parse<String> {
        let mut text = String::new();
        while let Some(c) = self.raw() {
            self.at += 1;
            if c == '\'' {
                return Ok(text);
            }
            text.push(c);
        }
        doubt("a single quote is not closed")
    }

    /// The parts up to `end`, read as inside double quotes; without `end`, a here-document's body.
    fn quoted_parts(&mut self, end: Option<char>) -> Parse<Vec<Part>> {
        let mut parts = Vec::new();
        loop {
            let Some(c) = self.next() else {
                return if end.is_none() { Ok(parts) } else { doubt("a double quote is not closed") };
            };
            match c {
                _ if Some(c) == end => {
                    self.at += 1;
                    return Ok(parts);
                }
                '\\' => {
                    self.at += 1;
                    match self.raw() {
                        Some(escaped)
                            if matches!(escaped, '$' | '`' | '\\') || (escaped == '"' && end.is_some()) =>
                        {
                            self.at += 1;
                            push_text(&mut parts, escaped.encode_utf8(&mut [0; 4]), true);
                        }
                        _ => push_text(&mut parts, "\\", true),
                    }
                }
                '$' | '`' => match self.deeper(|parser| parser.expansion(true))? {
                    Part::Text { text, .. } => push_text(&mut parts, &text, true),
                    part => parts.push(part),
                },
                _ => {
                    self.at += 1;
                    push_text(&mut parts, c.encode_utf8(&mut [0; 4]), true);
                }
            }
        }
    }

    /// What begins with `$` or a backtick.
    fn expansion(&mut self, quoted: bool) -> Parse<Part> {
        let first = self.next();
        self.at += 1;
        if first == Some('`') {
            return self.backticks(quoted);
        }
        match self.next() {
            Some('(') => {
                self.at += 1;
                if self.next() == Some('(') {
                    self.at += 1;
                    return Ok(Part::Arithmetic(self.arithmetic()?));
                }
                Ok(Part::Command { script: self.paren_list()?, quoted })
            }
            Some('{') => {
                self.at += 1;
                self.braced(quoted)
            }
            Some('\'') if !quoted => {
                self.at += 1;
                Ok(Part::Ansi(self.ansi_quoted()?))
            }
            Some('"') if !quoted => doubt("a text to be translated"),
            Some('[') => doubt("the old form of arithmetic"),
            Some(c) if is_name_start(c) => {
                let name = self.name();
                Ok(Part::Param(Param { name, quoted, plain: true, nested: Vec::new() }))
            }
            Some(c) if c.is_ascii_digit() || "@*#?-$!".contains(c) => {
                self.at += 1;
                Ok(Part::Param(Param { name: c.to_string(), quoted, plain: true, nested: Vec::new() }))
            }
            _ => Ok(Part::Text { text: "$".to_owned(), quoted }),
        }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(c) = self.next().filter(|c| is_name(*c)) {
            name.push(c);
            self.at += 1;
        }
        name
    }

    /// The rest of `${…}`.
    fn braced(&mut self, quoted: bool) -> Parse<Part> {
        let length = self.next() == Some('#') && self.second() != Some('}');
        if length {
            self.at += 1;
        }
        let mut name = self.name();
        if name.is_empty() {
            match self.next() {
                Some(c) if "@*#?-$".contains(c) => {
                    self.at += 1;
                    name.push(c);
                }
                _ => return doubt("an indirect or unknown expansion"),
            }
        }
        if self.next() == Some('[') {
            self.subscript()?;
            name.push_str("[]");
        }
        let mut nested = Vec::new();
        let plain = self.next() == Some('}') && !length && !name.ends_with(']');
        if self.next() != Some('}') {
            if length {
                return doubt("an expansion that is not understood");
            }
            self.modifier(quoted, &mut nested)?;
        }
        if !self.take('}') {
            return doubt("an expansion is not closed");
        }
        Ok(Part::Param(Param { name, quoted, plain, nested }))
    }

    /// The elements of an array, from its `(`. They are not assigned in the analysis, so its values are doubtful.
    fn array(&mut self) -> Parse<Vec<Word>> {
        self.value_doubt = Some("an array is assigned");
        self.at += 1;
        let mut elements = Vec::new();
        loop {
            self.gap()?;
            match self.next() {
                Some(')') => break,
                None => return doubt("an array is not closed"),
                Some(c) if is_meta(c) => return doubt("something unexpected in an array"),
                Some(_) => elements.push(self.word()?),
            }
        }
        self.at += 1;
        Ok(elements)
    }

    fn subscript(&mut self) -> Parse<()> {
        self.at += 1;
        while let Some(c) = self.next() {
            self.at += 1;
            match c {
                ']' => return Ok(()),
                '@' | '*' | '0'..='9' => {}
                'a'..='z' | 'A'..='Z' | '_' => self.value_doubt = Some("a subscript that is evaluated"),
                _ => return doubt("a subscript that is evaluated"),
            }
        }
        doubt("a subscript is not closed")
    }

    /// The modifier of `${name…}`, up to its `}`.
    fn modifier(&mut self, quoted: bool, nested: &mut Vec<Part>) -> Parse<()> {
        match self.next() {
            Some(':') => {
                self.at += 1;
                match self.next() {
                    Some('-' | '+' | '?') => self.at += 1,
                    Some(' ' | '0'..='9') => return self.substring(),
                    _ => return doubt("an expansion that is evaluated or assigns"),
                }
            }
            Some('-' | '+' | '?' | '#' | '%' | '/' | '^' | ',') => self.at += 1,
            _ => return doubt("an expansion that is evaluated or assigns"),
        }
        loop {
            match self.next() {
                None => return doubt("an expansion is not closed"),
                Some('}') => return Ok(()),
                Some('$' | '`') => nested.push(self.deeper(|parser| parser.expansion(quoted))?),
                Some('\'') if quoted => return doubt("a quote inside an expansion inside quotes"),
                Some('\'') => {
                    self.at += 1;
                    self.single_quoted()?;
                }
                Some('"') => {
                    self.at += 1;
                    nested.extend(self.deeper(|parser| parser.quoted_parts(Some('"')))?);
                }
                Some('\\') => {
                    self.at += 1;
                    if self.raw().is_some() {
                        self.at += 1;
                    }
                }
                Some('<' | '>') => return doubt("a redirection inside an expansion"),
                Some(_) => self.at += 1,
            }
        }
    }

    /// `${name:1:2}` with plain numbers.
    fn substring(&mut self) -> Parse<()> {
        loop {
            match self.next() {
                Some('}') => return Ok(()),
                Some('0'..='9' | ':' | '-' | ' ') => self.at += 1,
                _ => return doubt("an expansion that is evaluated or assigns"),
            }
        }
    }

    fn backticks(&mut self, quoted: bool) -> Parse<Part> {
        let mut text = String::new();
        loop {
            let Some(c) = self.raw() else { return doubt("a backtick is not closed") };
            self.at += 1;
            match c {
                '`' => break,
                '\\' => match self.raw() {
                    Some(escaped) if matches!(escaped, '$' | '`' | '\\') || (quoted && escaped == '"') => {
                        self.at += 1;
                        text.push(escaped);
                    }
                    // Bash takes these out, also where the text inside has quotes around them.
                    Some('\n') => return doubt("a line is continued inside backticks"),
                    _ => text.push('\\'),
                },
                _ => text.push(c),
            }
        }
        let parsed = parse_nested(&text, self.depth + 1);
        if let Some(doubt) = parsed.doubt {
            return Err(doubt);
        }
        if !parsed.bodies.is_empty() {
            return doubt("a here-document inside backticks");
        }
        Ok(Part::Command { script: parsed.script, quoted })
    }

    /// The rest of `$'…'`.
    fn ansi_quoted(&mut self) -> Parse<String> {
        let mut text = String::new();
        loop {
            let Some(c) = self.raw() else { return doubt("a quote is not closed") };
            self.at += 1;
            match c {
                '\'' => return Ok(text),
                '\\' => {
                    let decoded = self.ansi_escape()?;
                    text.push(decoded);
                }
                _ => text.push(c),
            }
        }
    }

    fn ansi_escape(&mut self) -> Parse<char> {
        let Some(c) = self.raw() else { return doubt("a quote is not closed") };
        self.at += 1;
        let code = match c {
            'n' => return Ok('\n'),
            't' => return Ok('\t'),
            '\\' | '\'' | '"' | '?' => return Ok(c),
            'x' => self.digits(16, 2),
            'u' => self.digits(16, 4),
            'U' => self.digits(16, 8),
            '0'..='7' => {
                self.at -= 1;
                self.digits(8, 3)
            }
            _ => None,
        };
        // Bytes above 127 may join into other characters, and control characters deceive; neither is
        // needed for anything harmless.
        let wide = matches!(c, 'u' | 'U');
        match code.and_then(char::from_u32) {
            Some('\n') => Ok('\n'),
            Some('\t') => Ok('\t'),
            Some(decoded) if !decoded.is_control() && (decoded.is_ascii() || wide) => Ok(decoded),
            _ => doubt("an escape that is not understood"),
        }
    }

    fn digits(&mut self, radix: u32, most: usize) -> Option<u32> {
        let mut value: Option<u32> = None;
        for _ in 0..most {
            let Some(digit) = self.raw().and_then(|c| c.to_digit(radix)) else { break };
            self.at += 1;
            value = Some(value.unwrap_or(0).checked_mul(radix)?.checked_add(digit)?);
        }
        value
    }
}

/// Whether a `~` after these parts is expanded: after the `=` of an assignment or a `:` in its value.
/// Expanding it where bash might not only makes a path look further away.
fn tilde_follows(parts: &[Part]) -> bool {
    matches!(parts.last(), Some(Part::Text { text, quoted: false }) if text.ends_with('=') || text.ends_with(':'))
}

fn push_text(parts: &mut Vec<Part>, text: &str, quoted: bool) {
    if let Some(Part::Text { text: before, quoted: same }) = parts.last_mut()
        && *same == quoted
    {
        before.push_str(text);
        return;
    }
    parts.push(Part::Text { text: text.to_owned(), quoted });
}

/// Whether a name could be a variable's.
pub(crate) fn is_identifier(name: &str) -> bool {
    name.starts_with(is_name_start) && name.chars().all(is_name)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn copy_kind(kind: RedirectKind, target: &Word) -> Parse<RedirectKind> {
    match target.bare() {
        Some(text) if text == "-" || is_number(text.strip_suffix('-').unwrap_or(&text)) => {
            Ok(RedirectKind::Duplicate)
        }
        Some(_) if kind == RedirectKind::Write => Ok(RedirectKind::Write),
        _ => doubt("a descriptor that is not known"),
    }
}

/// The assignment a word is, where it stands before the program's name.
fn assignment(word: &Word) -> Parse<Option<Assign>> {
    let Some(Part::Text { text, quoted: false }) = word.parts.first() else { return Ok(None) };
    if is_identifier(text) && matches!(word.parts.get(1), Some(Part::Glob('['))) {
        return doubt("an element of an array is assigned");
    }
    let Some((left, right)) = text.split_once('=') else { return Ok(None) };
    let (name, append) = match left.strip_suffix('+') {
        Some(name) => (name, true),
        None => (left, false),
    };
    if !is_identifier(name) {
        return Ok(None);
    }
    let mut parts = word.parts.clone();
    parts[0] = Part::Text { text: right.to_owned(), quoted: false };
    // Braces are not expanded in an assignment.
    for part in &mut parts {
        if let Part::Mark(mark) = part {
            *part = Part::Text { text: mark.to_string(), quoted: true };
        }
    }
    Ok(Some(Assign { name: name.to_owned(), append, value: Word { parts, source: word.source.clone() } }))
}
