//! What was written before. Takes prompts; gives the one before, the one after, and the newest that holds a word.

/// How many prompts are kept.
const MOST: usize = 1000;

/// Earlier prompts, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    prompts: Vec<String>,
    /// The one that is shown; none is what is being written.
    at: Option<usize>,
    /// The draft when the person began to look back.
    draft: String,
}

impl History {
    /// These, the oldest first.
    pub fn new(prompts: Vec<String>) -> Self {
        Self { prompts, ..Self::default() }
    }

    /// One more; the same twice in a row is one.
    pub fn push(&mut self, prompt: &str) {
        self.at = None;
        if self.prompts.last().is_none_or(|last| last != prompt) {
            self.prompts.push(prompt.to_owned());
        }
        if self.prompts.len() > MOST {
            self.prompts.remove(0);
        }
    }

    /// The prompt before the one that is shown; `now` is what stands there.
    pub fn previous(&mut self, now: &str) -> Option<&str> {
        let at = match self.at {
            None => {
                now.clone_into(&mut self.draft);
                self.prompts.len().checked_sub(1)?
            }
            Some(at) => at.checked_sub(1)?,
        };
        self.at = Some(at);
        Some(&self.prompts[at])
    }

    /// The one after it; behind the newest stands what was being written.
    pub fn following(&mut self) -> Option<&str> {
        let at = self.at? + 1;
        if let Some(prompt) = self.prompts.get(at) {
            self.at = Some(at);
            return Some(prompt);
        }
        self.at = None;
        Some(&self.draft)
    }

    /// The newest prompt that holds a word, ignoring case, after skipping so many.
    pub fn find(&self, word: &str, passed: usize) -> Option<&str> {
        let word = word.to_lowercase();
        let mut fitting = self.prompts.iter().rev().filter(|prompt| prompt.to_lowercase().contains(&word));
        fitting.nth(passed).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn going_back_and_forth_comes_home_to_what_was_being_written() {
        let mut history = History::new(vec!["one".into()]);
        history.push("two");
        history.push("two");
        assert_eq!(history.previous("draft"), Some("two"));
        assert_eq!(history.previous("two"), Some("one"));
        assert_eq!(history.previous("one"), None);
        assert_eq!(history.following(), Some("two"));
        assert_eq!(history.following(), Some("draft"));
        assert_eq!(history.following(), None);
        assert_eq!((history.find("ON", 0), history.find("x", 0)), (Some("one"), None));
        let history = History::new(vec!["make it".into(), "other".into(), "make that".into()]);
        let found: Vec<_> = (0..3).map(|passed| history.find("make", passed)).collect();
        assert_eq!(found, [Some("make that"), Some("make it"), None]);
    }
}
