//! Web pages as text. Takes HTML as servers send it, broken or not; gives its words in reading order with
//! headings, lists, links and code marked as in Markdown. One pass, no tree, no failure.

use reqwest::Url;

/// A page as a reader sees it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub title: String,
    pub text: String,
}

/// Reads a page. Relative links are resolved against `base`, if given.
pub(crate) fn read(html: &str, base: Option<&Url>) -> Page {
    let mut writer = Writer::new(base);
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        writer.text(&rest[..start]);
        rest = markup(&mut writer, &rest[start..]);
    }
    writer.text(rest);
    Page { title: writer.title.trim().to_owned(), text: writer.finish() }
}

/// Reads what a `<` begins and gives what is left after it.
fn markup<'a>(writer: &mut Writer<'_>, from: &'a str) -> &'a str {
    if let Some(comment) = from.strip_prefix("<!--") {
        return comment.find("-->").map_or("", |end| &comment[end + 3..]);
    }
    if from.starts_with("<!") || from.starts_with("<?") {
        return from.find('>').map_or("", |end| &from[end + 1..]);
    }
    let Some(tag) = Tag::read(from) else {
        // A lone `<` is text.
        writer.text("<");
        return &from[1..];
    };
    let rest = &from[tag.length..];
    if tag.closing {
        writer.close(&tag.name);
        return rest;
    }
    if tag.name == "title" {
        let (inside, rest) = until_closed(rest, "title");
        if writer.title.is_empty() {
            writer.title = collapsed(&decoded(inside));
        }
        return rest;
    }
    if is_skipped(&tag.name) {
        return if tag.self_closing { rest } else { until_closed(rest, &tag.name).1 };
    }
    writer.open(&tag);
    rest
}

/// Elements whose content is not for reading.
fn is_skipped(name: &str) -> bool {
    matches!(
        name,
        "script"
            | "style"
            | "template"
            | "svg"
            | "noscript"
            | "iframe"
            | "object"
            | "canvas"
            | "math"
            | "select"
    )
}

/// The content up to the closing tag of this name, and what follows it.
fn until_closed<'a>(from: &'a str, name: &str) -> (&'a str, &'a str) {
    let mut searched = 0;
    while let Some(found) = from[searched..].find("</") {
        let at = searched + found;
        let after = &from[at + 2..];
        let named = after.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        let ended = after.as_bytes().get(name.len()).is_none_or(|byte| !byte.is_ascii_alphanumeric());
        if named && ended {
            let rest = after.find('>').map_or("", |end| &after[end + 1..]);
            return (&from[..at], rest);
        }
        searched = at + 2;
    }
    (from, "")
}

/// A tag, with the two attributes that are read.
struct Tag {
    name: String,
    closing: bool,
    self_closing: bool,
    href: Option<String>,
    alt: Option<String>,
    /// Bytes from `<` to `>`.
    length: usize,
}

impl Tag {
    fn read(from: &str) -> Option<Self> {
        let bytes = from.as_bytes();
        let closing = bytes.get(1) == Some(&b'/');
        let start = if closing { 2 } else { 1 };
        if !bytes.get(start)?.is_ascii_alphabetic() {
            return None;
        }
        let name_end =
            end_of(bytes, start, |byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b':');
        let mut tag = Self {
            name: from[start..name_end].to_ascii_lowercase(),
            closing,
            self_closing: false,
            href: None,
            alt: None,
            length: bytes.len(),
        };
        let mut at = name_end;
        while at < bytes.len() {
            match bytes[at] {
                b'>' => {
                    tag.length = at + 1;
                    break;
                }
                b'/' => {
                    tag.self_closing = bytes.get(at + 1) == Some(&b'>');
                    at += 1;
                }
                byte if byte.is_ascii_whitespace() || byte == b'=' => at += 1,
                _ => at = tag.attribute(from, at),
            }
        }
        Some(tag)
    }

    /// Reads an attribute and gives where it ends.
    fn attribute(&mut self, from: &str, start: usize) -> usize {
        let bytes = from.as_bytes();
        let is_name = |byte: u8| !byte.is_ascii_whitespace() && !matches!(byte, b'=' | b'>' | b'/');
        let name_end = end_of(bytes, start, is_name).max(start + 1);
        let equals = end_of(bytes, name_end, |byte| byte.is_ascii_whitespace());
        if bytes.get(equals) != Some(&b'=') {
            return name_end;
        }
        let value_start = end_of(bytes, equals + 1, |byte| byte.is_ascii_whitespace());
        let (value, end) = if let Some(&quote @ (b'"' | b'\'')) = bytes.get(value_start) {
            let end = end_of(bytes, value_start + 1, |byte| byte != quote);
            (&from[value_start + 1..end], (end + 1).min(bytes.len()))
        } else {
            let end = end_of(bytes, value_start, |byte| !byte.is_ascii_whitespace() && byte != b'>');
            (&from[value_start..end], end)
        };
        let name = &bytes[start..name_end];
        if name.eq_ignore_ascii_case(b"href") {
            self.href = Some(decoded(value));
        } else if name.eq_ignore_ascii_case(b"alt") {
            self.alt = Some(decoded(value));
        }
        end
    }
}

/// Where bytes stop being of a kind.
fn end_of(bytes: &[u8], start: usize, is_kind: impl Fn(u8) -> bool) -> usize {
    let rest = bytes.get(start..).unwrap_or_default();
    start.min(bytes.len()) + rest.iter().take_while(|byte| is_kind(**byte)).count()
}

/// Writes text as it is read, with the white space that a reader would see.
struct Writer<'a> {
    base: Option<&'a Url>,
    title: String,
    out: String,
    /// Line breaks due before the next word.
    breaks: usize,
    space: bool,
    preformatted: usize,
    quotes: usize,
    /// Open lists, with the next number of those that count.
    lists: Vec<Option<u32>>,
    /// What stands before the next word: a heading's or an item's mark.
    mark: String,
    /// An open link, and whether its bracket has been written.
    link: Option<(String, bool)>,
    first_cell: bool,
}

impl<'a> Writer<'a> {
    fn new(base: Option<&'a Url>) -> Self {
        Self {
            base,
            title: String::new(),
            out: String::new(),
            breaks: 0,
            space: false,
            preformatted: 0,
            quotes: 0,
            lists: Vec::new(),
            mark: String::new(),
            link: None,
            first_cell: true,
        }
    }

    fn text(&mut self, raw: &str) {
        if raw.is_empty() {
            return;
        }
        let text = decoded(raw);
        if self.preformatted > 0 {
            self.start();
            self.out.push_str(&text);
            return;
        }
        for character in text.chars() {
            if character.is_whitespace() {
                self.space = true;
            } else if !character.is_control() {
                self.start();
                self.out.push(character);
            }
        }
    }

    /// Writes what is due before a word.
    fn start(&mut self) {
        if self.breaks > 0 && !self.out.is_empty() {
            for _ in 0..self.breaks {
                self.out.push('\n');
            }
        }
        let new_line = self.breaks > 0 || self.out.is_empty();
        if new_line {
            for _ in 0..self.quotes.min(8) {
                self.out.push_str("> ");
            }
            self.out.push_str(&std::mem::take(&mut self.mark));
        } else if self.space {
            self.out.push(' ');
        }
        (self.breaks, self.space) = (0, false);
        if let Some((_, written)) = &mut self.link
            && !*written
        {
            *written = true;
            self.out.push('[');
        }
    }

    fn word(&mut self, word: &str) {
        self.start();
        self.out.push_str(word);
    }

    fn block(&mut self, breaks: usize) {
        self.breaks = self.breaks.max(breaks);
        self.space = false;
    }

    fn open(&mut self, tag: &Tag) {
        match tag.name.as_str() {
            "br" => {
                self.breaks = (self.breaks + 1).min(2);
                self.space = false;
            }
            "hr" => {
                self.block(2);
                self.word("---");
                self.block(2);
            }
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                self.block(2);
                let level = usize::from(tag.name.as_bytes()[1] - b'0');
                self.mark = format!("{} ", "#".repeat(level));
            }
            "ul" | "ol" => {
                self.block(if self.lists.is_empty() { 2 } else { 1 });
                self.lists.push((tag.name == "ol").then_some(1));
            }
            "li" => self.item(),
            "pre" => {
                self.block(2);
                self.word("```\n");
                self.preformatted += 1;
            }
            "code" if self.preformatted == 0 => self.word("`"),
            "blockquote" => {
                self.block(2);
                self.quotes += 1;
            }
            "a" => {
                self.end_link();
                self.link = tag.href.as_deref().and_then(|href| self.target(href)).map(|href| (href, false));
            }
            "img" => {
                if let Some(alt) = tag.alt.as_deref().map(str::trim).filter(|alt| !alt.is_empty()) {
                    self.word(&format!("[image: {}]", collapsed(alt)));
                }
            }
            "tr" => {
                self.block(1);
                self.first_cell = true;
            }
            "td" | "th" => {
                if !std::mem::replace(&mut self.first_cell, false) {
                    self.space = true;
                    self.word("|");
                    self.space = true;
                }
            }
            name => self.block(breaks_around(name)),
        }
    }

    fn close(&mut self, name: &str) {
        match name {
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                self.mark.clear();
                self.block(2);
            }
            "ul" | "ol" => {
                self.lists.pop();
                self.block(if self.lists.is_empty() { 2 } else { 1 });
            }
            "li" | "tr" => {
                self.mark.clear();
                self.block(1);
            }
            "pre" if self.preformatted > 0 => {
                self.preformatted -= 1;
                if !self.out.ends_with('\n') {
                    self.out.push('\n');
                }
                self.out.push_str("```");
                self.block(2);
            }
            "code" if self.preformatted == 0 => self.out.push('`'),
            "blockquote" => {
                self.quotes = self.quotes.saturating_sub(1);
                self.block(2);
            }
            "a" => self.end_link(),
            name => self.block(breaks_around(name)),
        }
    }

    fn item(&mut self) {
        self.block(1);
        let indent = "  ".repeat(self.lists.len().saturating_sub(1).min(8));
        self.mark = match self.lists.last_mut() {
            Some(Some(number)) => {
                let mark = format!("{indent}{number}. ");
                *number = number.saturating_add(1);
                mark
            }
            _ => format!("{indent}- "),
        };
    }

    /// Where a link leads, if a reader could follow it.
    fn target(&self, href: &str) -> Option<String> {
        let href = href.trim();
        if href.is_empty() || href.starts_with('#') {
            return None;
        }
        let url = match self.base {
            Some(base) => base.join(href).ok()?,
            None => Url::parse(href).ok()?,
        };
        matches!(url.scheme(), "http" | "https" | "mailto").then(|| url.to_string())
    }

    fn end_link(&mut self) {
        if let Some((target, true)) = self.link.take() {
            self.out.push_str("](");
            self.out.push_str(&target);
            self.out.push(')');
        }
    }

    fn finish(mut self) -> String {
        self.end_link();
        if self.preformatted > 0 {
            self.out.push_str("\n```");
        }
        self.out.truncate(self.out.trim_end().len());
        self.out
    }
}

/// Line breaks before and after an element: none for those within a line.
fn breaks_around(name: &str) -> usize {
    match name {
        "p" | "table" | "dl" | "figure" | "form" | "article" | "section" | "main" => 2,
        "div" | "header" | "footer" | "nav" | "aside" | "dt" | "dd" | "figcaption" | "caption" | "thead"
        | "tbody" | "option" | "body" | "html" | "head" | "fieldset" | "details" | "summary" | "address" => 1,
        _ => 0,
    }
}

/// Text in one line.
fn collapsed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Text with its character references replaced.
fn decoded(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('&') {
        result.push_str(&rest[..start]);
        rest = &rest[start + 1..];
        // The longest name we know is eight characters; a reference far away is no reference.
        let end = rest.bytes().take(12).position(|byte| byte == b';');
        match end.and_then(|end| Some((reference(&rest[..end])?, end))) {
            Some((character, end)) => {
                result.push(character);
                rest = &rest[end + 1..];
            }
            None => result.push('&'),
        }
    }
    result.push_str(rest);
    result
}

fn reference(name: &str) -> Option<char> {
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok()?,
            None => number.parse().ok()?,
        };
        return Some(char::from_u32(code).filter(|character| *character != '\0').unwrap_or('\u{fffd}'));
    }
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, character)| *character)
}

const NAMES: &[(&str, char)] = &[
    ("amp", '&'),
    ("lt", '<'),
    ("gt", '>'),
    ("quot", '"'),
    ("apos", '\''),
    ("nbsp", ' '),
    ("copy", '©'),
    ("reg", '®'),
    ("trade", '™'),
    ("hellip", '…'),
    ("mdash", '—'),
    ("ndash", '–'),
    ("lsquo", '‘'),
    ("rsquo", '’'),
    ("ldquo", '“'),
    ("rdquo", '”'),
    ("laquo", '«'),
    ("raquo", '»'),
    ("bull", '•'),
    ("middot", '·'),
    ("sect", '§'),
    ("para", '¶'),
    ("deg", '°'),
    ("plusmn", '±'),
    ("times", '×'),
    ("divide", '÷'),
    ("larr", '←'),
    ("rarr", '→'),
    ("uarr", '↑'),
    ("darr", '↓'),
    ("le", '≤'),
    ("ge", '≥'),
    ("ne", '≠'),
    ("euro", '€'),
    ("pound", '£'),
    ("auml", 'ä'),
    ("ouml", 'ö'),
    ("uuml", 'ü'),
    ("Auml", 'Ä'),
    ("Ouml", 'Ö'),
    ("Uuml", 'Ü'),
    ("szlig", 'ß'),
    ("eacute", 'é'),
    ("egrave", 'è'),
    ("agrave", 'à'),
    ("ccedil", 'ç'),
    ("zwnj", '\u{200c}'),
    ("shy", '\u{ad}'),
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(html: &str) -> String {
        let base = Url::parse("https://example.org/docs/a.html").unwrap();
        read(html, Some(&base)).text
    }

    #[test]
    fn pages_are_read_as_markdown() {
        let cases = [
            ("plain & simple &lt;b&gt; &#x41;&#66; &nope; &", "plain & simple <b> AB &nope; &"),
            ("<h1>T</h1><p>one\n two</p><p>three</p>", "# T\n\none two\n\nthree"),
            ("<ul><li>a<li>b<ol><li>c</li></ol></ul>x", "- a\n- b\n  1. c\n\nx"),
            (
                "<a href='b.html'>link</a>, <a href=\"#x\">here</a>",
                "[link](https://example.org/docs/b.html), here",
            ),
            ("<a href=javascript:x()>no</a><a href=/y></a>", "no"),
            ("a<br>b<br><br>c", "a\nb\n\nc"),
            ("<pre><code>x  =\n  1</code></pre>y <code>z</code>", "```\nx  =\n  1\n```\n\ny `z`"),
            ("<script>if (a < b) {}</script>x<STYLE>p{}</STYLE>y<!-- <p>no -->z", "xyz"),
            ("<script>never closed <p>x", ""),
            ("<svg><title>s</title><path/></svg>after", "after"),
            ("<table><tr><th>a<th>b</tr><tr><td>1</td><td>2</td></tr></table>", "a | b\n1 | 2"),
            ("<blockquote><p>q</p></blockquote>r", "> q\n\nr"),
            ("<img alt='a  cat' src=x><img src=y>", "[image: a cat]"),
            ("1 < 2 <3 </ x", "1 < 2 <3 </ x"),
            ("<p title='a > b'>x</p", "x"),
            ("<div>a</div><div>b</div>", "a\nb"),
            ("<hr>", "---"),
        ];
        for (html, expected) in cases {
            assert_eq!(text(html), expected, "{html}");
        }
    }

    #[test]
    fn the_title_is_apart() {
        let page = read("<head><title>A &amp;\n B</title></head><body>x</body>", None);
        assert_eq!(page, Page { title: "A & B".into(), text: "x".into() });
    }

    proptest! {
        /// Any text is read, and what comes out is bounded by what went in.
        #[test]
        fn nothing_breaks_it(html in "(<|>|/|!|--|&|;|#|=|\"|'|a|pre|li|h1|script|title|href| |\n|é|\\PC){0,60}") {
            let base = Url::parse("https://example.org/").unwrap();
            let page = read(&html, Some(&base));
            prop_assert!(page.text.len() <= 64 * html.len() + 64);
        }
    }
}
