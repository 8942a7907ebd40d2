//! Keys as commands. Takes the keys of a command so far; gives the command, or says that more are needed.

/// The limit of a count: a larger one is a mistake, and must not block the screen.
const MOST: usize = 9_999;

/// What keys say so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParsedKeys {
    /// The beginning of a command.
    More,
    Nothing,
    /// A command and its count; none without a count.
    Command(VimCommand, Option<usize>),
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VimCommand {
    Move(VimMotion),
    Operate(Operator, OperatorTarget),
    Insert(InsertPlace),
    Replace(char),
    /// Before the cursor, or behind it.
    Put {
        before: bool,
    },
    Join,
    Case,
    Undo,
    Repeat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Delete,
    Change,
    Yank,
}

/// What an operator works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperatorTarget {
    Motion(VimMotion),
    /// Whole lines, this one first.
    Lines,
    Object {
        kind: Object,
        around: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VimMotion {
    Left,
    Right,
    Up,
    Down,
    /// To the next word; big ones end at spaces only.
    Word {
        big: bool,
    },
    Back {
        big: bool,
    },
    End {
        big: bool,
    },
    LineStart,
    /// To the first character that is no space.
    First,
    LineEnd,
    Top,
    Bottom,
    Find(Find),
    /// The last search on the line again.
    Again {
        reverse: bool,
    },
}

/// A search for a character on the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Find {
    pub(super) letter: char,
    /// Whether it stops before it.
    pub(super) till: bool,
    pub(super) back: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Word { big: bool },
    Quotes(char),
    Brackets(char, char),
}

/// Where text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InsertPlace {
    Here,
    Behind,
    First,
    LineEnd,
    Below,
    Above,
}

/// Reads the keys of a command.
pub(super) fn parse(keys: &str) -> ParsedKeys {
    let mut keys = KeyReader { rest: keys };
    match keys.command() {
        Some((command, count)) => ParsedKeys::Command(command, count),
        None if keys.rest.is_empty() => ParsedKeys::More,
        None => ParsedKeys::Nothing,
    }
}

/// The remaining keys. A parser that returns none without taking an unknown key says that it is no command.
struct KeyReader<'a> {
    rest: &'a str,
}

impl KeyReader<'_> {
    fn next(&mut self) -> Option<char> {
        let letter = self.rest.chars().next()?;
        self.rest = &self.rest[letter.len_utf8()..];
        Some(letter)
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// A number; a `0` alone is a motion.
    fn count(&mut self) -> Option<usize> {
        let mut count = None;
        while let Some(digit) = self.peek().and_then(|letter| letter.to_digit(10)) {
            if digit == 0 && count.is_none() {
                break;
            }
            self.next();
            count = Some((count.unwrap_or(0) * 10 + digit as usize).min(MOST));
        }
        count
    }

    fn command(&mut self) -> Option<(VimCommand, Option<usize>)> {
        let count = self.count();
        let operator = match self.peek()? {
            'd' => Operator::Delete,
            'c' => Operator::Change,
            'y' => Operator::Yank,
            _ => return Some((self.simple()?, count)),
        };
        let letter = self.next()?;
        let second = self.count();
        let both = match (count, second) {
            (Some(first), Some(second)) => Some((first * second).min(MOST)),
            (first, second) => first.or(second),
        };
        let target = if self.peek()? == letter {
            self.next();
            OperatorTarget::Lines
        } else if let around @ ('i' | 'a') = self.peek()? {
            let before = self.rest;
            self.next();
            let object = self.peek()?;
            let Some(kind) = object_of(object) else {
                self.rest = before;
                return None;
            };
            self.next();
            OperatorTarget::Object { kind, around: around == 'a' }
        } else {
            OperatorTarget::Motion(self.motion()?)
        };
        Some((VimCommand::Operate(operator, target), both))
    }

    fn simple(&mut self) -> Option<VimCommand> {
        use Operator::{Change, Delete, Yank};
        let operate = |operator, motion| VimCommand::Operate(operator, OperatorTarget::Motion(motion));
        let command = match self.peek()? {
            'x' => operate(Delete, VimMotion::Right),
            'X' => operate(Delete, VimMotion::Left),
            's' => operate(Change, VimMotion::Right),
            'D' => operate(Delete, VimMotion::LineEnd),
            'C' => operate(Change, VimMotion::LineEnd),
            'S' => VimCommand::Operate(Change, OperatorTarget::Lines),
            'Y' => VimCommand::Operate(Yank, OperatorTarget::Lines),
            'p' => VimCommand::Put { before: false },
            'P' => VimCommand::Put { before: true },
            'J' => VimCommand::Join,
            '~' => VimCommand::Case,
            'u' => VimCommand::Undo,
            '.' => VimCommand::Repeat,
            'i' => VimCommand::Insert(InsertPlace::Here),
            'a' => VimCommand::Insert(InsertPlace::Behind),
            'I' => VimCommand::Insert(InsertPlace::First),
            'A' => VimCommand::Insert(InsertPlace::LineEnd),
            'o' => VimCommand::Insert(InsertPlace::Below),
            'O' => VimCommand::Insert(InsertPlace::Above),
            'r' => {
                self.next();
                return self.next().map(VimCommand::Replace);
            }
            _ => return self.motion().map(VimCommand::Move),
        };
        self.next();
        Some(command)
    }

    fn motion(&mut self) -> Option<VimMotion> {
        let motion = match self.peek()? {
            'h' => VimMotion::Left,
            'l' | ' ' => VimMotion::Right,
            'j' => VimMotion::Down,
            'k' => VimMotion::Up,
            'w' => VimMotion::Word { big: false },
            'W' => VimMotion::Word { big: true },
            'b' => VimMotion::Back { big: false },
            'B' => VimMotion::Back { big: true },
            'e' => VimMotion::End { big: false },
            'E' => VimMotion::End { big: true },
            '0' => VimMotion::LineStart,
            '^' | '_' => VimMotion::First,
            '$' => VimMotion::LineEnd,
            'G' => VimMotion::Bottom,
            ';' => VimMotion::Again { reverse: false },
            ',' => VimMotion::Again { reverse: true },
            'g' => return self.after_g(),
            kind @ ('f' | 'F' | 't' | 'T') => {
                self.next();
                let letter = self.next()?;
                let (till, back) = (matches!(kind, 't' | 'T'), matches!(kind, 'F' | 'T'));
                return Some(VimMotion::Find(Find { letter, till, back }));
            }
            _ => return None,
        };
        self.next();
        Some(motion)
    }

    fn after_g(&mut self) -> Option<VimMotion> {
        let before = self.rest;
        self.next();
        if self.peek()? == 'g' {
            self.next();
            return Some(VimMotion::Top);
        }
        self.rest = before;
        None
    }
}

fn object_of(letter: char) -> Option<Object> {
    Some(match letter {
        'w' => Object::Word { big: false },
        'W' => Object::Word { big: true },
        '"' | '\'' | '`' => Object::Quotes(letter),
        '(' | ')' | 'b' => Object::Brackets('(', ')'),
        '[' | ']' => Object::Brackets('[', ']'),
        '{' | '}' | 'B' => Object::Brackets('{', '}'),
        '<' | '>' => Object::Brackets('<', '>'),
        _ => return None,
    })
}
