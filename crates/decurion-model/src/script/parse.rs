//! Reads the text of a script. In: text. Out: rules, or the first thing wrong with its line and column.

use std::time::Duration;

use decurion_protocol::Usage;
use regex::RegexBuilder;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    AnswerPlan, CallInput, Condition, CutEnding, CutPoint, CutUnit, FailureBody, PatternTarget, ScriptError,
    ScriptNumbers, ScriptRule, ScriptStep, ScriptedFailure, Stall, TextPattern, WriteSplit,
};

const MAX_SCRIPT: usize = 4 * 1024 * 1024;
/// The longest text a `repeat` may make.
const MAX_REPEATED: usize = 64 * 1024 * 1024;
const DEFAULT_CHUNK: usize = 64;
const DEFAULT_PING: Duration = Duration::from_secs(5);

/// All rules of a text.
pub(super) fn script(text: &str) -> Result<Vec<ScriptRule>, ScriptError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut cursor = TextCursor { text, at: 0 };
    if text.len() > MAX_SCRIPT {
        return Err(cursor.error(format!("the script is longer than {MAX_SCRIPT} bytes")));
    }
    let mut rules: Vec<ScriptRule> = Vec::new();
    while cursor.next_line() {
        let start = cursor.at;
        let keyword = cursor.word("`when` or a step")?;
        match (keyword, rules.last_mut()) {
            ("when", _) => rules.push(cursor.rule(start)?),
            (keyword, Some(rule)) => cursor.step(start, keyword, rule)?,
            (keyword, None) => {
                return Err(
                    cursor.error_at(start, format!("a script begins with `when`, not with {keyword:?}"))
                );
            }
        }
        cursor.end_of_line()?;
    }
    if rules.is_empty() { Err(cursor.error("the script has no rule")) } else { Ok(rules) }
}

/// A place in the text.
struct TextCursor<'a> {
    text: &'a str,
    at: usize,
}

const STEPS: &str = "say, think, call, block, stop, usage, model, message-id, delay, fail, status, error, raw, \
                     malformed, reset, close, stall, panic, split";

/// Rules and their conditions.
impl TextCursor<'_> {
    fn rule(&mut self, start: usize) -> Result<ScriptRule, ScriptError> {
        let mut conditions = Vec::new();
        while self.more_on_line() {
            conditions.push(self.condition()?);
        }
        let template = AnswerPlan {
            line: self.position(start).0,
            failure: None,
            steps: Vec::new(),
            stop: None,
            usage: Usage::default(),
            model: None,
            message_id: None,
            splits: Vec::new(),
            cut: None,
        };
        Ok(ScriptRule { conditions, usage: None, template })
    }

    fn condition(&mut self) -> Result<Condition, ScriptError> {
        let start = self.at;
        let key = self.key()?;
        Ok(match key {
            "agent" => Condition::Agent(self.text_value()?),
            "model" => Condition::Model(self.text_value()?),
            "turn" => Condition::Turn(self.numbers()?),
            "try" => Condition::Try(self.numbers()?),
            "within" => Condition::Within(self.duration()?),
            "match" => Condition::Text(PatternTarget::Last, self.pattern()?),
            "text" => Condition::Text(PatternTarget::Text, self.pattern()?),
            "result" => Condition::Text(PatternTarget::Result, self.pattern()?),
            "first" => Condition::Text(PatternTarget::First, self.pattern()?),
            other => {
                let known = "agent, model, turn, try, within, match, text, result, first";
                return Err(self.error_at(start, format!("no such condition (there are {known}): {other:?}")));
            }
        })
    }

    fn pattern(&mut self) -> Result<TextPattern, ScriptError> {
        if self.peek() != Some('/') {
            return self.text_value().map(TextPattern::Contains);
        }
        let start = self.at;
        self.at += 1;
        let mut source = String::new();
        loop {
            match self.bump() {
                Some('/') => break,
                Some('\\') if self.peek() == Some('/') => {
                    self.at += 1;
                    source.push('/');
                }
                Some('\\') => {
                    source.push('\\');
                    source.extend(self.bump());
                }
                Some('\n') | None => return Err(self.error_at(start, "the pattern has no closing `/`")),
                Some(other) => source.push(other),
            }
        }
        let mut builder = RegexBuilder::new(&source);
        builder.size_limit(1 << 20);
        while let Some(flag) = self.peek().filter(char::is_ascii_alphabetic) {
            match flag {
                'i' => builder.case_insensitive(true),
                's' => builder.dot_matches_new_line(true),
                'm' => builder.multi_line(true),
                other => {
                    return Err(self.error(format!("no such flag of a pattern (there are i, s, m): {other}")));
                }
            };
            self.at += 1;
        }
        let regex = builder.build().map_err(|error| {
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            self.error_at(start, format!("the pattern cannot be read: {reason}"))
        })?;
        Ok(TextPattern::Regex(regex))
    }

    fn numbers(&mut self) -> Result<ScriptNumbers, ScriptError> {
        let start = self.at;
        let word = self.bare();
        let (from, to) = match word.split_once("..") {
            Some((from, "")) => (from.parse().ok(), Some(u32::MAX)),
            Some((from, to)) => (from.parse().ok(), to.parse().ok()),
            None => (word.parse().ok(), word.parse().ok()),
        };
        match (from, to) {
            (Some(from), Some(to)) if 1 <= from && from <= to => Ok(ScriptNumbers { from, to }),
            _ => {
                Err(self
                    .error_at(start, format!("expected a number from 1 on, `2..4` or `2..`, not {word:?}")))
            }
        }
    }
}

/// What `say` and `think` take.
struct SpokenArguments {
    text: String,
    chunk: usize,
    every: Duration,
}

impl TextCursor<'_> {
    fn step(&mut self, start: usize, keyword: &str, rule: &mut ScriptRule) -> Result<(), ScriptError> {
        let plan = &mut rule.template;
        match keyword {
            "say" => {
                let SpokenArguments { text, chunk, every } = self.spoken()?;
                plan.steps.push(ScriptStep::Say { text, chunk, every });
            }
            "think" => {
                let SpokenArguments { text, chunk, every } = self.spoken()?;
                plan.steps.push(ScriptStep::Think { text, chunk, every });
            }
            "call" => plan.steps.push(self.call()?),
            "block" => plan.steps.push(ScriptStep::Block(Value::Object(self.json("a JSON object")?))),
            "stop" => plan.stop = Some(self.text_value()?),
            "usage" => rule.usage = Some(self.usage()?),
            "model" => plan.model = Some(self.text_value()?),
            "message-id" => plan.message_id = Some(self.text_value()?),
            "delay" => plan.steps.push(ScriptStep::Delay(self.duration()?)),
            "fail" => plan.failure = Some(self.failure(false)?),
            "status" => plan.failure = Some(self.failure(true)?),
            "error" => plan.steps.push(self.stream_error()?),
            "raw" => plan.steps.push(ScriptStep::Raw(self.string()?.into_bytes())),
            "malformed" => plan.steps.push(self.malformed()?),
            "reset" => self.ending(plan, CutEnding::Reset)?,
            "close" => self.ending(plan, CutEnding::Close)?,
            "stall" => self.ending(plan, CutEnding::Stall)?,
            "panic" => plan.steps.push(ScriptStep::Panic),
            "split" => plan.splits.push(self.split()?),
            other => return Err(self.error_at(start, format!("no such step (there are {STEPS}): {other:?}"))),
        }
        Ok(())
    }

    /// `[chunk=N] [every=TIME] [repeat=N] "text"`
    fn spoken(&mut self) -> Result<SpokenArguments, ScriptError> {
        let (mut chunk, mut repeat, mut every) = (DEFAULT_CHUNK, 1_usize, Duration::ZERO);
        self.spaces();
        while self.option_follows() {
            let start = self.at;
            match self.key()? {
                "chunk" => chunk = self.number()?.max(1),
                "every" => every = self.duration()?,
                "repeat" => repeat = self.number()?,
                other => {
                    return Err(self.error_at(
                        start,
                        format!("expected chunk=, every=, repeat= or a text, not {other:?}"),
                    ));
                }
            }
            self.spaces();
        }
        let start = self.at;
        let text = self.string()?;
        if text.len().saturating_mul(repeat) > MAX_REPEATED {
            return Err(
                self.error_at(start, format!("the repeated text is longer than {MAX_REPEATED} bytes"))
            );
        }
        Ok(SpokenArguments { text: text.repeat(repeat), chunk, every })
    }

    /// `Tool [as ID] [{json}] [name=value …]` or `Tool [as ID] raw "text"`
    fn call(&mut self) -> Result<ScriptStep, ScriptError> {
        self.spaces();
        let name = self.word("the name of a tool")?.to_owned();
        let id = if self.keyword("as") { Some(self.text_value()?) } else { None };
        if self.keyword("raw") {
            let text = self.string()?;
            return Ok(ScriptStep::Call { name, id, input: CallInput::Raw(text) });
        }
        self.spaces();
        let mut input = Map::new();
        if self.peek() == Some('{') {
            input = self.json("a JSON object")?;
        }
        while self.more_on_line() {
            let start = self.at;
            let key = self.key()?.to_owned();
            let value = match self.peek() {
                Some('"' | '<') => Value::String(self.string()?),
                _ => self.json("a text or a JSON value")?,
            };
            if input.insert(key, value).is_some() {
                return Err(self.error_at(start, "the input has this member already"));
            }
        }
        Ok(ScriptStep::Call { name, id, input: CallInput::Json(input) })
    }

    fn usage(&mut self) -> Result<Usage, ScriptError> {
        let mut usage = Usage::default();
        while self.more_on_line() {
            let start = self.at;
            let key = self.key()?;
            let slot = match key {
                "input" => &mut usage.input_tokens,
                "output" => &mut usage.output_tokens,
                "cache_read" => &mut usage.cache_read_input_tokens,
                "cache_write" => &mut usage.cache_creation_input_tokens,
                other => {
                    let known = "input, output, cache_read, cache_write";
                    return Err(self.error_at(start, format!("no such count (there are {known}): {other:?}")));
                }
            };
            *slot = self.number()? as u64;
        }
        Ok(usage)
    }

    /// `STATUS [retry-after=S] [should-retry=B] [type=KIND] [content-type=T] [header.NAME=V] ["text"]`
    fn failure(&mut self, raw: bool) -> Result<ScriptedFailure, ScriptError> {
        self.spaces();
        let start = self.at;
        let status = self.number()?;
        let status = u16::try_from(status)
            .ok()
            .filter(|status| (100..1000).contains(status))
            .ok_or_else(|| self.error_at(start, format!("not an HTTP status: {status}")))?;
        let (mut headers, mut kind, mut text) = (Vec::new(), None, None);
        while self.more_on_line() {
            if matches!(self.peek(), Some('"' | '<')) && text.is_none() {
                text = Some(self.string()?);
                continue;
            }
            let start = self.at;
            let key = self.key()?.to_owned();
            let value = self.text_value()?;
            match key.as_str() {
                "type" if !raw => kind = Some(value),
                "should-retry" => headers.push(("x-should-retry".to_owned(), value)),
                "retry-after" | "retry-after-ms" | "content-type" => headers.push((key, value)),
                other => match other.strip_prefix("header.") {
                    Some(name) => headers.push((name.to_ascii_lowercase(), value)),
                    None => {
                        return Err(self.error_at(start, format!("no such part of a failure: {other:?}")));
                    }
                },
            }
        }
        let body = if raw {
            FailureBody::Raw(text.unwrap_or_default())
        } else {
            FailureBody::Error { kind, message: text.unwrap_or_else(|| "scripted failure".to_owned()) }
        };
        Ok(ScriptedFailure { status, headers, body })
    }

    fn stream_error(&mut self) -> Result<ScriptStep, ScriptError> {
        self.spaces();
        let kind = self.word("a kind of error, e.g. overloaded_error")?.to_owned();
        let message = if self.more_on_line() { self.string()? } else { "scripted error".to_owned() };
        Ok(ScriptStep::Error { kind, message })
    }

    /// `json | utf8 | order | html | line N`
    fn malformed(&mut self) -> Result<ScriptStep, ScriptError> {
        self.spaces();
        let start = self.at;
        let bytes = match self.word("what is malformed")? {
            "json" => b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\n\n".to_vec(),
            "utf8" => b"data: {\"type\":\"\xff\xfe\",\"id\":\"\xff\xfe\"}\n\n".to_vec(),
            "order" => concat!(
                "event: content_block_delta\n",
                "data: {\"type\":\"content_block_delta\",\"index\":7,",
                "\"delta\":{\"type\":\"text_delta\",\"text\":\"astray\"}}\n\n"
            )
            .into(),
            "html" => b"data: <html><body>Bad gateway</body></html>\n\n".to_vec(),
            "line" => {
                self.spaces();
                let length = self.number()?;
                if length > MAX_REPEATED {
                    return Err(self.error_at(start, format!("the line is longer than {MAX_REPEATED} bytes")));
                }
                [b"data: ".to_vec(), vec![b'x'; length], b"\n\n".to_vec()].concat()
            }
            other => {
                let known = "json, utf8, order, html, line N; for other bytes use raw";
                return Err(self.error_at(start, format!("no such damage (there are {known}): {other:?}")));
            }
        };
        Ok(ScriptStep::Raw(bytes))
    }

    /// Nothing (here), `after N bytes`, `after N events`; a stall also `pings [every=T]`, `empty [every=T]`.
    fn ending(&mut self, plan: &mut AnswerPlan, ending: CutEnding) -> Result<(), ScriptError> {
        if self.keyword("after") {
            self.spaces();
            let after = self.number()?;
            self.spaces();
            let start = self.at;
            let unit = match self.word("bytes or events")? {
                "byte" | "bytes" => CutUnit::Bytes,
                "event" | "events" => CutUnit::Events,
                other => return Err(self.error_at(start, format!("expected bytes or events, not {other:?}"))),
            };
            plan.cut = Some(CutPoint { after, unit, ending });
            return Ok(());
        }
        plan.steps.push(match ending {
            CutEnding::Reset => ScriptStep::Reset,
            CutEnding::Close => ScriptStep::Close,
            CutEnding::Stall if self.keyword("pings") => ScriptStep::Stall(Stall::Pings(self.every()?)),
            CutEnding::Stall if self.keyword("empty") => ScriptStep::Stall(Stall::Empty(self.every()?)),
            CutEnding::Stall => ScriptStep::Stall(Stall::Silent),
        });
        Ok(())
    }

    fn every(&mut self) -> Result<Duration, ScriptError> {
        if !self.more_on_line() {
            return Ok(DEFAULT_PING);
        }
        let start = self.at;
        match self.key()? {
            "every" => Ok(self.duration()?.max(Duration::from_millis(1))),
            other => Err(self.error_at(start, format!("expected every=, not {other:?}"))),
        }
    }

    /// `at N` or `every N`
    fn split(&mut self) -> Result<WriteSplit, ScriptError> {
        self.spaces();
        let start = self.at;
        let word = self.word("at or every")?.to_owned();
        self.spaces();
        match word.as_str() {
            "at" => Ok(WriteSplit::At(self.number()?)),
            "every" => Ok(WriteSplit::Every(self.number()?.max(1))),
            other => Err(self.error_at(start, format!("expected at or every, not {other:?}"))),
        }
    }
}

/// Words, texts and values.
impl<'a> TextCursor<'a> {
    /// `"text"`, `<<END` with lines up to `END`, or a bare word.
    fn text_value(&mut self) -> Result<String, ScriptError> {
        self.spaces();
        match self.peek() {
            Some('"' | '<') => self.string(),
            _ => match self.bare() {
                "" => Err(self.error("expected a value")),
                word => Ok(word.to_owned()),
            },
        }
    }

    /// `"text"` with JSON's escapes, or `<<END` with lines up to `END`.
    fn string(&mut self) -> Result<String, ScriptError> {
        self.spaces();
        if self.rest().starts_with("<<") {
            return self.lines_until_mark();
        }
        match self.peek() {
            Some('"') => self.json("a text in double quotes"),
            _ => Err(self.error("expected a text in double quotes, or <<END and lines up to END")),
        }
    }

    fn lines_until_mark(&mut self) -> Result<String, ScriptError> {
        let start = self.at;
        self.at += 2;
        let mark = self.word("the word that ends the text")?;
        self.end_of_line()?;
        let mut lines = Vec::new();
        while let Some(line) = self.line() {
            if line.trim() == mark {
                // The cursor stays on the closing line's end, which the caller checks.
                self.at -= usize::from(self.text[..self.at].ends_with('\n'));
                return Ok(undent(&lines));
            }
            lines.push(line);
        }
        Err(self.error_at(start, format!("no line closes this text: {mark}")))
    }

    fn json<T: DeserializeOwned>(&mut self, expected: &str) -> Result<T, ScriptError> {
        self.spaces();
        let mut values = serde_json::Deserializer::from_str(self.rest()).into_iter::<T>();
        match values.next() {
            Some(Ok(value)) => {
                self.at += values.byte_offset();
                Ok(value)
            }
            Some(Err(error)) => {
                let at = self.at + offset_of(self.rest(), error.line(), error.column());
                let reason = error.to_string();
                let reason = reason.split(" at line").next().unwrap_or_default().to_owned();
                Err(self.error_at(at, format!("expected {expected}: {reason}")))
            }
            None => Err(self.error(format!("expected {expected}"))),
        }
    }

    /// `200ms`, `2s`, `1.5s`, `3m`; a bare number is seconds.
    fn duration(&mut self) -> Result<Duration, ScriptError> {
        self.spaces();
        let start = self.at;
        let word = self.bare();
        let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let scale = match &word[digits.len()..] {
            "ms" => 0.001,
            "s" | "" => 1.0,
            "m" => 60.0,
            _ => f64::NAN,
        };
        let seconds = digits.parse::<f64>().unwrap_or(f64::NAN) * scale;
        match Duration::try_from_secs_f64(seconds) {
            Ok(time) if seconds <= 86_400.0 => Ok(time),
            _ => Err(self.error_at(start, format!("expected a time such as 200ms, 2s or 3m, not {word:?}"))),
        }
    }

    fn number(&mut self) -> Result<usize, ScriptError> {
        let start = self.at;
        let word = self.bare();
        word.replace('_', "")
            .parse()
            .map_err(|_| self.error_at(start, format!("expected a number, not {word:?}")))
    }

    fn key(&mut self) -> Result<&'a str, ScriptError> {
        self.spaces();
        let start = self.at;
        let name = self.take(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
        if name.is_empty() || self.peek() != Some('=') {
            let found: String =
                self.text[start..].chars().take_while(|c| !c.is_whitespace()).take(40).collect();
            return Err(self.error_at(start, format!("expected name=value, not {found:?}")));
        }
        self.at += 1;
        Ok(name)
    }

    /// Whether `name=` comes next.
    fn option_follows(&self) -> bool {
        let after = self.rest().trim_start_matches(|c: char| c.is_ascii_lowercase());
        after.len() < self.rest().len() && after.starts_with('=')
    }

    /// Whether this word comes next; if so it is passed.
    fn keyword(&mut self, word: &str) -> bool {
        self.spaces();
        let ends = |after: &str| after.chars().next().is_none_or(char::is_whitespace);
        let is_next = self.rest().strip_prefix(word).is_some_and(ends);
        if is_next {
            self.at += word.len();
            self.spaces();
        }
        is_next
    }

    fn word(&mut self, expected: &str) -> Result<&'a str, ScriptError> {
        match self.take(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':')) {
            "" => Err(self.error(format!("expected {expected}"))),
            word => Ok(word),
        }
    }

    fn bare(&mut self) -> &'a str {
        self.take(|c| !c.is_whitespace() && c != '"')
    }

    fn take(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !fits(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }
}

impl<'a> TextCursor<'a> {
    /// Goes to the next line that says something.
    fn next_line(&mut self) -> bool {
        loop {
            self.take(char::is_whitespace);
            match self.peek() {
                None => return false,
                Some('#') => {
                    self.line();
                }
                Some(_) => return true,
            }
        }
    }

    fn more_on_line(&mut self) -> bool {
        self.spaces();
        !matches!(self.peek(), None | Some('\n' | '\r' | '#'))
    }

    fn end_of_line(&mut self) -> Result<(), ScriptError> {
        if self.more_on_line() {
            let found: String = self.rest().chars().take_while(|c| *c != '\n').take(40).collect();
            return Err(self.error(format!("expected the end of the line, not {found:?}")));
        }
        self.line();
        Ok(())
    }

    /// The rest of this line; none at the end of the text.
    fn line(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        if rest.is_empty() {
            return None;
        }
        let end = rest.find('\n');
        self.at += end.map_or(rest.len(), |end| end + 1);
        Some(rest[..end.unwrap_or(rest.len())].trim_end_matches('\r'))
    }

    fn spaces(&mut self) {
        self.take(|c| c == ' ' || c == '\t');
    }

    fn bump(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn error(&self, message: impl Into<String>) -> ScriptError {
        self.error_at(self.at, message)
    }

    fn error_at(&self, at: usize, message: impl Into<String>) -> ScriptError {
        let (line, column) = self.position(at);
        ScriptError { line, column, message: message.into() }
    }

    fn position(&self, at: usize) -> (u32, u32) {
        let before = &self.text[..at.min(self.text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
    }
}

/// Where a line and column (in bytes, from 1) of a text are.
fn offset_of(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let mut at = (start + column.saturating_sub(1)).min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The lines without the indentation they share, joined; no newline at the end.
fn undent(lines: &[&str]) -> String {
    let said = lines.iter().filter(|line| !line.trim().is_empty());
    let indent = said.map(|line| line.len() - line.trim_start_matches([' ', '\t']).len()).min().unwrap_or(0);
    let cut: Vec<&str> = lines.iter().map(|line| line.get(indent..).unwrap_or("")).collect();
    cut.join("\n")
}
