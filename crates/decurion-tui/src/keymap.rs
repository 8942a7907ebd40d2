//! Keys and what they do. Takes the names of keys, also from a person's own file; gives the action of a key that was
//! pressed.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::composer::{ComposerEdit, CursorMotion};

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send what is written, or choose.
    Submit,
    Newline,
    /// Interrupt the turn, or close what is open.
    Interrupt,
    /// Empty the prompt; twice leaves.
    Leave,
    /// Leave where nothing is written; else delete ahead.
    EndOfInput,
    /// Put all that the main agent waits for into the background.
    Background,
    /// The next permission mode.
    Mode,
    /// The whole conversation, with everything that is folded.
    Transcript,
    Tasks,
    /// Search what was written before.
    History,
    Help,
    /// Write in an editor.
    Editor,
    Redraw,
    /// Hold the program, as the shell does it.
    Suspend,
    /// Take what is proposed.
    Complete,
    /// Up: a row, an entry, or further back.
    Up,
    Down,
    PageUp,
    PageDown,
    Edit(ComposerEdit),
}

/// Names of actions, as a person's file has them, with their keys and a few words for the help.
const TABLE: &[(&str, Action, &[&str], &str)] = &[
    ("submit", Action::Submit, &["enter"], "send, or choose"),
    ("newline", Action::Newline, &["ctrl+j", "alt+enter", "shift+enter"], "another line (also \\ and enter)"),
    (
        "interrupt",
        Action::Interrupt,
        &["esc"],
        "interrupt the turn, close what is open; twice: clear the prompt, or rewind",
    ),
    ("leave", Action::Leave, &["ctrl+c"], "empty the prompt; twice leaves"),
    ("endOfInput", Action::EndOfInput, &["ctrl+d"], "leave"),
    ("background", Action::Background, &["ctrl+b"], "move foreground work to the background"),
    ("mode", Action::Mode, &["shift+tab"], "the next permission mode"),
    ("transcript", Action::Transcript, &["ctrl+o"], "the whole conversation, unfolded"),
    ("tasks", Action::Tasks, &["ctrl+t"], "agents and commands"),
    ("history", Action::History, &["ctrl+r"], "search earlier prompts"),
    ("help", Action::Help, &["f1"], "these keys (also ? in an empty prompt)"),
    ("editor", Action::Editor, &["ctrl+g"], "write in your editor"),
    ("redraw", Action::Redraw, &["ctrl+l"], "draw everything again"),
    ("suspend", Action::Suspend, &["ctrl+z"], "suspend (fg to resume)"),
    ("complete", Action::Complete, &["tab"], "take what is proposed"),
    ("up", Action::Up, &["up", "ctrl+p"], "up, or the prompt before"),
    ("down", Action::Down, &["down", "ctrl+n"], "down, or the next prompt"),
    ("pageUp", Action::PageUp, &["pageup"], "a page up"),
    ("pageDown", Action::PageDown, &["pagedown"], "a page down"),
    ("left", Action::Edit(ComposerEdit::Move(CursorMotion::Left)), &["left"], "left"),
    ("right", Action::Edit(ComposerEdit::Move(CursorMotion::Right)), &["right", "ctrl+f"], "right"),
    (
        "wordLeft",
        Action::Edit(ComposerEdit::Move(CursorMotion::WordLeft)),
        &["alt+left", "ctrl+left", "alt+b"],
        "a word left",
    ),
    (
        "wordRight",
        Action::Edit(ComposerEdit::Move(CursorMotion::WordRight)),
        &["alt+right", "ctrl+right", "alt+f"],
        "a word right",
    ),
    (
        "lineStart",
        Action::Edit(ComposerEdit::Move(CursorMotion::LineStart)),
        &["home", "ctrl+a"],
        "to the start of the line",
    ),
    (
        "lineEnd",
        Action::Edit(ComposerEdit::Move(CursorMotion::LineEnd)),
        &["end", "ctrl+e"],
        "to the end of the line",
    ),
    ("start", Action::Edit(ComposerEdit::Move(CursorMotion::Start)), &["ctrl+home"], "to the beginning"),
    ("end", Action::Edit(ComposerEdit::Move(CursorMotion::End)), &["ctrl+end"], "to the end"),
    (
        "deleteLeft",
        Action::Edit(ComposerEdit::Delete(CursorMotion::Left)),
        &["backspace", "ctrl+h"],
        "delete",
    ),
    ("deleteRight", Action::Edit(ComposerEdit::Delete(CursorMotion::Right)), &["delete"], "delete ahead"),
    (
        "cutWordLeft",
        Action::Edit(ComposerEdit::Cut(CursorMotion::WordLeft)),
        &["ctrl+w", "alt+backspace"],
        "cut a word",
    ),
    (
        "cutWordRight",
        Action::Edit(ComposerEdit::Cut(CursorMotion::WordRight)),
        &["alt+d"],
        "cut the next word",
    ),
    (
        "cutToStart",
        Action::Edit(ComposerEdit::Cut(CursorMotion::LineStart)),
        &["ctrl+u"],
        "cut to the start of the line",
    ),
    (
        "cutToEnd",
        Action::Edit(ComposerEdit::Cut(CursorMotion::LineEnd)),
        &["ctrl+k"],
        "cut to the end of the line",
    ),
    ("yank", Action::Edit(ComposerEdit::Yank), &["ctrl+y"], "paste what was cut"),
    ("undo", Action::Edit(ComposerEdit::Undo), &["ctrl+_", "ctrl+/", "ctrl+7"], "undo"),
    ("redo", Action::Edit(ComposerEdit::Redo), &["alt+_", "alt+/"], "redo"),
];

/// A key with what is held down beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chord {
    code: KeyCode,
    modifiers: KeyModifiers,
}

/// A key's name that means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a key: {0:?}; keys are written like ctrl+b, alt+enter, shift+tab, f1, pageup")]
pub struct UnknownKey(pub String);

/// Why a person's own keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeymapError {
    #[error(transparent)]
    Key(#[from] UnknownKey),
    #[error("no action has this name: {0:?}; the names are {names}", names = names())]
    Action(String),
}

/// The names of all actions.
fn names() -> String {
    TABLE.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ")
}

/// An action in the help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Helped {
    /// Its keys; empty where it has none.
    pub keys: String,
    /// Its name, as a person's file has it.
    pub name: &'static str,
    /// What it does, in a few words.
    pub words: &'static str,
}

impl Helped {
    /// Its keys, or that it has none.
    pub fn shown(&self) -> &str {
        if self.keys.is_empty() { "(no key)" } else { &self.keys }
    }
}

/// Which key does what.
#[derive(Clone, Debug)]
pub struct Keymap {
    actions: HashMap<Chord, Action>,
}

impl Default for Keymap {
    fn default() -> Self {
        let mut actions = HashMap::new();
        for (_, action, keys, _) in TABLE {
            actions
                .extend(keys.iter().filter_map(|key| key.parse().ok()).map(|chord: Chord| (chord, *action)));
        }
        Self { actions }
    }
}

impl Keymap {
    /// Gives a key to an action by their names; none frees the key.
    pub fn bind(&mut self, key: &str, action: Option<&str>) -> Result<(), KeymapError> {
        let chord: Chord = key.parse()?;
        match action {
            None => {
                self.actions.remove(&chord);
            }
            Some(name) => {
                let known = TABLE.iter().find(|(known, ..)| *known == name);
                let (_, action, ..) = known.ok_or_else(|| KeymapError::Action(name.to_owned()))?;
                self.actions.insert(chord, *action);
            }
        }
        Ok(())
    }

    /// The action of a key; a letter without one is written.
    pub fn action(&self, key: &KeyEvent) -> Option<Action> {
        let chord = Chord::of(key);
        if let Some(action) = self.actions.get(&chord) {
            return Some(*action);
        }
        match key.code {
            KeyCode::Char(letter) if (chord.modifiers - KeyModifiers::SHIFT).is_empty() => {
                Some(Action::Edit(ComposerEdit::Type(letter)))
            }
            _ => None,
        }
    }

    /// Every action, also one whose keys were taken from it.
    pub fn help(&self) -> Vec<Helped> {
        let keys_of = |action: Action| {
            let mut keys: Vec<String> = self
                .actions
                .iter()
                .filter(|(_, bound)| **bound == action)
                .map(|(chord, _)| chord.to_string())
                .collect();
            keys.sort_by_key(|key| (key.len(), key.clone()));
            keys.join(", ")
        };
        let helped = |(name, action, _, words): &(&'static str, Action, _, &'static str)| Helped {
            keys: keys_of(*action),
            name,
            words,
        };
        TABLE.iter().map(helped).collect()
    }
}

impl Chord {
    fn of(key: &KeyEvent) -> Self {
        let held = key.modifiers & (KeyModifiers::CONTROL | KeyModifiers::ALT | KeyModifiers::SHIFT);
        match key.code {
            // Terminals differ in whether they say that shift makes a tab go back.
            KeyCode::BackTab => Self { code: KeyCode::Tab, modifiers: held | KeyModifiers::SHIFT },
            // A letter counts as typed; with control held its case does not matter.
            KeyCode::Char(letter) if held.contains(KeyModifiers::CONTROL) => Self {
                code: KeyCode::Char(letter.to_ascii_lowercase()),
                modifiers: held - KeyModifiers::SHIFT,
            },
            KeyCode::Char(letter) => {
                Self { code: KeyCode::Char(letter), modifiers: held - KeyModifiers::SHIFT }
            }
            code => Self { code, modifiers: held },
        }
    }
}

impl FromStr for Chord {
    type Err = UnknownKey;
    fn from_str(text: &str) -> Result<Self, UnknownKey> {
        let unknown = || UnknownKey(text.to_owned());
        let (mut rest, mut modifiers) = (text, KeyModifiers::NONE);
        let held =
            [("ctrl+", KeyModifiers::CONTROL), ("alt+", KeyModifiers::ALT), ("shift+", KeyModifiers::SHIFT)];
        while let Some((name, modifier)) =
            held.iter().find(|(name, _)| rest.len() > name.len() && rest.starts_with(name))
        {
            (rest, modifiers) = (&rest[name.len()..], modifiers | *modifier);
        }
        let code = match rest {
            "enter" => KeyCode::Enter,
            "esc" | "escape" => KeyCode::Esc,
            "tab" => KeyCode::Tab,
            "space" => KeyCode::Char(' '),
            "backspace" => KeyCode::Backspace,
            "delete" => KeyCode::Delete,
            "up" => KeyCode::Up,
            "down" => KeyCode::Down,
            "left" => KeyCode::Left,
            "right" => KeyCode::Right,
            "home" => KeyCode::Home,
            "end" => KeyCode::End,
            "pageup" => KeyCode::PageUp,
            "pagedown" => KeyCode::PageDown,
            _ => {
                let mut letters = rest.chars();
                match (letters.next(), letters.as_str()) {
                    (Some(letter), "") => KeyCode::Char(letter),
                    (Some('f'), number) => KeyCode::F(number.parse().map_err(|_| unknown())?),
                    _ => return Err(unknown()),
                }
            }
        };
        Ok(Self { code, modifiers })
    }
}

impl fmt::Display for Chord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (modifier, name) in
            [(KeyModifiers::CONTROL, "ctrl+"), (KeyModifiers::ALT, "alt+"), (KeyModifiers::SHIFT, "shift+")]
        {
            if self.modifiers.contains(modifier) {
                f.write_str(name)?;
            }
        }
        match self.code {
            KeyCode::Char(' ') => f.write_str("space"),
            KeyCode::Char(letter) => write!(f, "{letter}"),
            KeyCode::F(number) => write!(f, "f{number}"),
            KeyCode::PageUp => f.write_str("pageup"),
            KeyCode::PageDown => f.write_str("pagedown"),
            code => f.write_str(&format!("{code:?}").to_lowercase()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: KeyCode, modifiers: KeyModifiers) -> KeyEvent {
        KeyEvent::new(code, modifiers)
    }

    #[test]
    fn every_key_of_the_table_is_one_and_reads_back() {
        let mut seen = HashMap::new();
        for (name, action, keys, _) in TABLE {
            for text in *keys {
                let chord: Chord = text.parse().unwrap();
                assert_eq!(chord.to_string(), *text);
                assert_eq!(seen.insert(chord, *name), None, "{text} has two actions");
                assert_eq!(Keymap::default().actions[&chord], *action);
            }
        }
        for bad in ["", "ctrl+", "hyper+x", "fx", "enter2"] {
            assert!(bad.parse::<Chord>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn terminals_may_differ_in_how_they_tell_a_key() {
        let keymap = Keymap::default();
        let (none, shift, control) = (KeyModifiers::NONE, KeyModifiers::SHIFT, KeyModifiers::CONTROL);
        assert_eq!(keymap.action(&key(KeyCode::BackTab, none)), Some(Action::Mode));
        assert_eq!(keymap.action(&key(KeyCode::BackTab, shift)), Some(Action::Mode));
        assert_eq!(keymap.action(&key(KeyCode::Char('B'), control | shift)), Some(Action::Background));
        assert_eq!(
            keymap.action(&key(KeyCode::Char('A'), shift)),
            Some(Action::Edit(ComposerEdit::Type('A')))
        );
        assert_eq!(keymap.action(&key(KeyCode::Char('q'), control)), None);
    }

    #[test]
    fn a_person_may_bind_other_keys() {
        let mut keymap = Keymap::default();
        keymap.bind("ctrl+q", Some("leave")).unwrap();
        keymap.bind("ctrl+c", None).unwrap();
        let pressed = |letter| key(KeyCode::Char(letter), KeyModifiers::CONTROL);
        assert_eq!((keymap.action(&pressed('q')), keymap.action(&pressed('c'))), (Some(Action::Leave), None));
        let wrong = keymap.bind("ctrl+x", Some("fly")).unwrap_err();
        assert_eq!(wrong, KeymapError::Action("fly".into()));
        let help = keymap.help();
        let leave = help.iter().find(|helped| helped.name == "leave").unwrap();
        assert!(leave.keys == "ctrl+q" && leave.words.contains("twice leaves"), "{leave:?}");
        // Whoever reads why it is wrong reads what is right, and each of that can be bound.
        let wrong = wrong.to_string();
        let (_, names) = wrong.split_once("the names are ").unwrap();
        let names: Vec<&str> = names.split(", ").collect();
        assert_eq!(names, help.iter().map(|helped| helped.name).collect::<Vec<_>>());
        for name in names {
            keymap.bind("ctrl+x", Some(name)).unwrap();
        }
    }
}
