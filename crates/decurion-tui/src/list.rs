//! A list above the prompt, of which one row is chosen. Takes rows and what can be done with one; gives, key by key, what
//! a person wants done, and the lines to show.

use jiff::Timestamp;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};

use crate::composer::{Composer, ComposerEdit};
use crate::keymap::Action;
use crate::text::{cut, one_line, visible, width, wrap};
use crate::theme::Theme;

/// How many lines the details of a row may take.
const DETAILS: usize = 6;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListRow {
    /// What it is known by.
    pub id: String,
    pub name: String,
    /// A few words beside it.
    pub note: String,
    /// Shown below the list while this row is chosen.
    pub details: Vec<String>,
    /// Its time, shown beside it.
    pub when: Option<Timestamp>,
}

/// Something that can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// By which key; `\n` is enter, `\t` the tab.
    pub key: char,
    /// In a word or two.
    pub words: &'static str,
    /// The text to write first, if one is needed.
    pub needs: Option<&'static str>,
    /// Whether it is about the chosen row.
    pub of_row: bool,
}

impl Offer {
    /// About the chosen row.
    pub const fn row(key: char, words: &'static str) -> Self {
        Self { key, words, needs: None, of_row: true }
    }

    pub const fn all(key: char, words: &'static str) -> Self {
        Self { key, words, needs: None, of_row: false }
    }

    #[must_use]
    pub const fn asking(mut self, needs: &'static str) -> Self {
        self.needs = Some(needs);
        self
    }
}

#[derive(Clone, Debug, Default)]
pub struct ChoiceList {
    /// What it is of.
    pub title: String,
    pub rows: Vec<ListRow>,
    /// What can be done.
    pub offers: Vec<Offer>,
    /// Shown if there are no rows.
    pub empty: String,
    /// Which row is chosen.
    pub chosen: usize,
    /// Whether it was picked by its number.
    pub picked: bool,
    /// Shown below the rows: problems besides them.
    pub remarks: Vec<String>,
    /// What is being written for an offer.
    writing: Option<(Offer, Composer)>,
    /// The word that rows must hold, where what is typed searches, and all rows.
    search: Option<(String, Vec<ListRow>)>,
}

/// What a key meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListAction {
    /// Something for the list itself.
    Taken,
    Closed,
    /// This is to be done, with the id of the row and the words where it needs them.
    Do(char, String, String),
    Passed,
}

impl ChoiceList {
    /// A list with these rows.
    pub fn new(title: impl Into<String>, rows: Vec<ListRow>, offers: &[Offer], empty: &str) -> Self {
        let (title, empty) = (title.into(), empty.to_owned());
        Self {
            title,
            rows,
            offers: offers.to_vec(),
            empty,
            chosen: 0,
            picked: false,
            remarks: Vec::new(),
            writing: None,
            search: None,
        }
    }

    /// The same list, in which what is typed searches.
    #[must_use]
    pub fn searched(mut self) -> Self {
        self.search = Some((String::new(), Vec::new()));
        self
    }

    /// Searches for another word: rows that hold all of its parts, ignoring case.
    fn search(&mut self, change: impl FnOnce(&mut String)) {
        let Some((word, all)) = &mut self.search else { return };
        if all.is_empty() {
            all.clone_from(&self.rows);
        }
        let chosen = self.rows.get(self.chosen).map(|row| row.id.clone());
        // What was learnt of a row since stays with it.
        for row in self.rows.drain(..) {
            if let Some(own) = all.iter_mut().find(|own| own.id == row.id) {
                *own = row;
            }
        }
        change(word);
        let parts: Vec<String> = word.to_lowercase().split_whitespace().map(str::to_owned).collect();
        let holds = |row: &&ListRow| {
            let text = format!("{} {} {}", row.name, row.note, row.details.join(" ")).to_lowercase();
            parts.iter().all(|part| text.contains(part))
        };
        self.rows = all.iter().filter(holds).cloned().collect();
        self.chosen = self.rows.iter().position(|row| Some(&row.id) == chosen.as_ref()).unwrap_or(0);
    }

    /// Whether words are being written.
    pub fn writing(&mut self) -> Option<&mut Composer> {
        self.writing.as_mut().map(|(_, words)| words)
    }

    /// Whether words are being written.
    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Whether all that can be done is to take a row.
    pub fn only_takes(&self) -> bool {
        self.offers.iter().any(|offer| offer.key == '\n')
            && !self.offers.iter().any(|offer| offer.key != '\n')
    }

    /// What a key means here.
    pub fn key(&mut self, action: Action) -> ListAction {
        if self.writing.is_some() {
            return self.writing_key(action);
        }
        let last = self.rows.len().saturating_sub(1);
        match action {
            Action::Interrupt => return ListAction::Closed,
            Action::Up => self.chosen = self.chosen.saturating_sub(1),
            Action::Down => self.chosen = (self.chosen + 1).min(last),
            Action::PageUp => self.chosen = self.chosen.saturating_sub(10),
            Action::PageDown => self.chosen = (self.chosen + 10).min(last),
            Action::Submit => return self.offer('\n'),
            Action::Complete if self.offers.iter().any(|offer| offer.key == '\t') => return self.offer('\t'),
            Action::Edit(ComposerEdit::Type(letter)) if self.search.is_some() => {
                self.search(|word| word.push(letter));
            }
            Action::Edit(ComposerEdit::Delete(_) | ComposerEdit::Cut(_)) if self.search.is_some() => {
                self.search(|word| {
                    word.pop();
                });
            }
            Action::Edit(ComposerEdit::Type(digit @ '1'..='9'))
                if !self.offers.iter().any(|offer| offer.key == digit) =>
            {
                let at = digit as usize - '1' as usize;
                if at >= self.rows.len() {
                    return ListAction::Taken;
                }
                self.chosen = at;
                return self.offer('\n');
            }
            Action::Edit(ComposerEdit::Type(letter)) => return self.offer(letter),
            Action::Edit(_) | Action::Newline | Action::Complete => {}
            _ => return ListAction::Passed,
        }
        ListAction::Taken
    }

    fn offer(&mut self, key: char) -> ListAction {
        let Some(offer) = self.offers.iter().find(|offer| offer.key == key).copied() else {
            return ListAction::Taken;
        };
        if offer.of_row && self.rows.is_empty() {
            return ListAction::Taken;
        }
        if offer.needs.is_some() {
            self.writing = Some((offer, Composer::default()));
            return ListAction::Taken;
        }
        ListAction::Do(key, self.id(offer), String::new())
    }

    fn id(&self, offer: Offer) -> String {
        let row = self.rows.get(self.chosen).filter(|_| offer.of_row);
        row.map(|row| row.id.clone()).unwrap_or_default()
    }

    fn writing_key(&mut self, action: Action) -> ListAction {
        let Some((offer, words)) = &mut self.writing else { return ListAction::Passed };
        match action {
            Action::Interrupt => self.writing = None,
            Action::Edit(edit) => words.edit(edit),
            Action::Submit if words.text().trim().is_empty() => self.writing = None,
            Action::Submit => {
                let (offer, text) = (*offer, words.take());
                self.writing = None;
                return ListAction::Do(offer.key, self.id(offer), text.trim().to_owned());
            }
            Action::Leave => return ListAction::Passed,
            _ => {}
        }
        ListAction::Taken
    }

    /// The list as lines, so many at most.
    pub fn lines(&self, theme: &Theme, columns: usize, most: usize, now: Timestamp) -> Vec<Line<'static>> {
        crate::fault_point::pass("list");
        // Where there is no room, what enter would take is in sight.
        if most < 4 && self.writing.is_none() && !self.rows.is_empty() {
            let count = format!(" {}/{}", self.chosen + 1, self.rows.len());
            let name = one_line(&self.rows[self.chosen.min(self.rows.len() - 1)].name);
            let row = cut(&format!("❯ {name}"), columns.saturating_sub(width(&count))).into_owned();
            return vec![Line::styled(format!("{row}{count}"), theme.accent)];
        }
        let mut lines = vec![Line::styled(cut(&one_line(&self.title), columns).into_owned(), theme.heading)];
        let searched = self.search.as_ref().map(|(word, _)| word.as_str()).filter(|word| !word.is_empty());
        if let Some(word) = searched {
            let words = format!("search: {}", one_line(word));
            lines.push(Line::styled(cut(&words, columns).into_owned(), theme.accent));
        }
        if self.rows.is_empty() {
            let words = if searched.is_some() { "nothing found" } else { &self.empty };
            lines.extend(wrap(Line::styled(words.to_owned(), theme.faint), columns, ""));
        }
        let details = self.details(theme, columns);
        let taken = details.len() + self.remarks.len() + 3 + usize::from(searched.is_some());
        let room = most.saturating_sub(taken).max(1);
        let from = self.chosen.saturating_sub(room / 2).min(self.rows.len().saturating_sub(room));
        let wide = self.rows.iter().map(|row| width(&row.name)).max().unwrap_or(0).min(columns / 2);
        for (at, row) in self.rows.iter().enumerate().skip(from).take(room) {
            lines.push(self.row((at, row), wide, theme, columns, now));
        }
        let hidden = self.rows.len().saturating_sub(room);
        if hidden > 0 {
            lines.push(Line::styled(format!("  {} of {}", self.chosen + 1, self.rows.len()), theme.faint));
        }
        lines.extend(details);
        lines.extend(
            self.remarks
                .iter()
                .map(|remark| Line::styled(cut(&one_line(remark), columns).into_owned(), theme.warning)),
        );
        lines.push(self.foot(theme, columns));
        lines
    }

    /// The list as lines that do not change: every row with its number, and what can be typed.
    pub fn numbered(&self) -> Vec<Line<'static>> {
        if let Some((offer, _)) = &self.writing {
            return vec![Line::raw(format!("{}: write it in one line", offer.needs.unwrap_or_default()))];
        }
        let mut lines = vec![Line::raw(one_line(&self.title))];
        if self.rows.is_empty() {
            lines.push(Line::raw(self.empty.clone()));
        }
        let row = |(at, row): (usize, &ListRow)| {
            let when = row.when.map(|when| when.strftime("%Y-%m-%d %H:%M").to_string());
            let note = format!("{}{}", when.unwrap_or_default(), one_line(&row.note));
            let gap = if note.is_empty() { "" } else { "  " };
            Line::raw(format!("{:>3}. {}{gap}{note}", at + 1, one_line(&row.name)))
        };
        match self.rows.get(self.chosen).filter(|_| self.picked) {
            Some(picked) => {
                lines.push(row((self.chosen, picked)));
                let details = picked.details.iter().filter(|detail| !detail.is_empty());
                lines.extend(details.map(|detail| Line::raw(format!("     {}", one_line(detail)))));
            }
            None => lines.extend(self.rows.iter().enumerate().map(row)),
        }
        lines.extend(self.remarks.iter().map(|remark| Line::raw(one_line(remark))));
        lines.push(Line::raw(self.typed()));
        lines
    }

    /// What can be typed.
    fn typed(&self) -> String {
        let chosen = self.picked;
        let mut words = Vec::new();
        if !self.rows.is_empty() && self.offers.iter().any(|offer| offer.of_row) {
            words.push(if chosen { "a number: another" } else { "a number: choose it" }.to_owned());
        }
        let offers = self.offers.iter().filter(|offer| chosen || !offer.of_row);
        words.extend(offers.map(|offer| match offer.key {
            '\n' => format!("enter: {}", offer.words),
            '\t' => format!("t: {}", offer.words),
            key => format!("{key}: {}", offer.words),
        }));
        words.push("q: close".to_owned());
        words.join(", ")
    }

    fn row(
        &self,
        (at, row): (usize, &ListRow),
        wide: usize,
        theme: &Theme,
        columns: usize,
        now: Timestamp,
    ) -> Line<'static> {
        let is_chosen = at == self.chosen;
        let (mark, style) = if is_chosen { ("❯ ", theme.accent) } else { ("  ", Style::default()) };
        let name = cut(&one_line(&row.name), wide.max(4)).into_owned();
        let gap = " ".repeat(wide.saturating_sub(width(&name)) + 2);
        let room = columns.saturating_sub(wide + 4);
        let when = row.when.map(|when| ago(when, now)).unwrap_or_default();
        let gap_between = if when.is_empty() || row.note.is_empty() { "" } else { " · " };
        let note = cut(&format!("{when}{gap_between}{}", one_line(&row.note)), room).into_owned();
        let mut spans = vec![Span::styled(mark, style), Span::styled(name, style)];
        if !note.is_empty() {
            spans.push(Span::styled(format!("{gap}{note}"), theme.faint));
        }
        Line::from(spans)
    }

    fn details(&self, theme: &Theme, columns: usize) -> Vec<Line<'static>> {
        let Some(row) = self.rows.get(self.chosen) else { return Vec::new() };
        let all = row.details.iter().flat_map(|detail| {
            let shown = visible(detail).into_owned();
            shown.lines().map(|line| Line::styled(format!("    {line}"), theme.faint)).collect::<Vec<_>>()
        });
        all.flat_map(|line| wrap(line, columns, "    ")).take(DETAILS).collect()
    }

    fn foot(&self, theme: &Theme, columns: usize) -> Line<'static> {
        if let Some((offer, words)) = &self.writing {
            let lead = format!("{}: ", offer.needs.unwrap_or_default());
            let text = visible(words.raw()).into_owned();
            return Line::from(vec![
                Span::styled(lead, theme.accent),
                Span::raw(text),
                Span::styled(" ", Style::new().add_modifier(Modifier::REVERSED)),
            ]);
        }
        let mut words: Vec<String> = vec!["↑↓ choose".to_owned()];
        if self.search.is_some() {
            words.push("type to search".to_owned());
        }
        words.extend(self.offers.iter().map(|offer| match offer.key {
            '\n' => format!("enter {}", offer.words),
            '\t' => format!("tab {}", offer.words),
            key => format!("{key} {}", offer.words),
        }));
        words.push("esc close".to_owned());
        Line::styled(cut(&words.join(" · "), columns).into_owned(), theme.faint)
    }
}

/// How long ago something was, in one unit.
pub fn ago(when: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(when.as_second()).max(0);
    let (minute, hour, day) = (60, 3600, 86_400);
    match seconds {
        0..60 => "just now".to_owned(),
        _ if seconds < hour => format!("{} min ago", seconds / minute),
        _ if seconds < day => format!("{} h ago", seconds / hour),
        _ if seconds < 2 * day => "yesterday".to_owned(),
        _ if seconds < 60 * day => format!("{} days ago", seconds / day),
        _ if seconds < 730 * day => format!("{} months ago", seconds / (30 * day)),
        _ => format!("{} years ago", seconds / (365 * day)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::composer::CursorMotion;
    use crate::theme::Shades;

    fn list() -> ChoiceList {
        let row = |id: &str| ListRow { id: id.into(), name: format!("the {id}"), ..ListRow::default() };
        let offers =
            [Offer::row('\n', "open"), Offer::row('x', "remove"), Offer::all('n', "new").asking("name")];
        ChoiceList::new("Things", vec![row("a"), row("b"), row("c")], &offers, "there are none")
    }

    fn typed(letter: char) -> Action {
        Action::Edit(ComposerEdit::Type(letter))
    }

    #[test]
    fn keys_choose_and_do() {
        let mut list = list();
        assert_eq!(list.key(Action::Down), ListAction::Taken);
        assert_eq!(list.key(typed('x')), ListAction::Do('x', "b".into(), String::new()));
        assert_eq!(list.key(typed('3')), ListAction::Do('\n', "c".into(), String::new()));
        assert_eq!(list.key(typed('9')), ListAction::Taken);
        assert_eq!(list.key(typed('q')), ListAction::Taken);
        assert_eq!(list.key(Action::Background), ListAction::Passed);
        assert_eq!(list.key(Action::Interrupt), ListAction::Closed);
    }

    #[test]
    fn what_needs_words_asks_for_them() {
        let mut list = list();
        assert_eq!(list.key(typed('n')), ListAction::Taken);
        for letter in "bad".chars() {
            list.key(typed(letter));
        }
        list.key(Action::Edit(ComposerEdit::Delete(CursorMotion::Left)));
        let foot = list.lines(&Theme::new(Shades::None), 40, 20, Timestamp::UNIX_EPOCH).pop().unwrap();
        assert_eq!(foot.to_string(), "name: ba ");
        assert_eq!(list.key(Action::Submit), ListAction::Do('n', String::new(), "ba".into()));
        list.key(typed('n'));
        assert_eq!(
            (list.key(Action::Interrupt), list.key(Action::Interrupt)),
            (ListAction::Taken, ListAction::Closed)
        );
    }

    #[test]
    fn as_plain_lines_a_number_chooses_and_then_a_letter_does() {
        let mut list = list();
        list.rows[1].details = vec!["more of it".into()];
        let lines = |list: &ChoiceList| {
            list.numbered().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        expect_test::expect![[r"
            Things
              1. the a
              2. the b
              3. the c
            a number: choose it, n: new, q: close"]]
        .assert_eq(&lines(&list));
        (list.chosen, list.picked) = (1, true);
        list.remarks = vec!["a warning".into()];
        expect_test::expect![[r"
            Things
              2. the b
                 more of it
            a warning
            a number: another, enter: open, x: remove, n: new, q: close"]]
        .assert_eq(&lines(&list));
        assert!(!list.only_takes());
    }

    #[test]
    fn the_chosen_row_is_in_sight_however_many_there_are() {
        let rows = (0..500).map(|at| ListRow { name: format!("row {at}"), ..ListRow::default() }).collect();
        let mut list = ChoiceList::new("Many", rows, &[], "none");
        list.chosen = 250;
        let lines = list.lines(&Theme::new(Shades::None), 30, 10, Timestamp::UNIX_EPOCH);
        assert!(lines.len() <= 10, "{}", lines.len());
        assert!(lines.iter().any(|line| line.to_string().contains("❯ row 250")));
    }
}
