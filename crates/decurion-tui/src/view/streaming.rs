//! What is still coming. Takes a conversation; gives the end of what its agent says, thinks and does at this moment.

use ratatui_core::text::Line;

use super::item::{self, ItemFolding};
use crate::conversation::{AGENT, Conversation, ConversationItem};
use crate::text::{cut, one_line};
use crate::theme::Theme;

/// How many lines of thought are shown while they come.
const THOUGHTS: usize = 3;
/// How many lines of an answer are laid out while it comes: more than a screen has room for.
const MOST: usize = 200;

/// What is being said and done, as lines: without the calls that started agents, where these have lines elsewhere.
pub fn lines(
    conversation: &Conversation,
    theme: &Theme,
    columns: usize,
    hides_agents: bool,
) -> Vec<Line<'static>> {
    crate::fault_point::pass("coming");
    let mut lines = Vec::new();
    if let Some(thinking) = conversation.thinking() {
        let from = thinking.floor_char_boundary(thinking.len().saturating_sub(THOUGHTS * 4 * columns));
        let thought = ConversationItem::Thought(thinking[from..].to_owned());
        let all = item::lines(&thought, theme, columns, ItemFolding::Open);
        let from = all.len().saturating_sub(THOUGHTS);
        lines.extend(all.into_iter().skip(from));
    }
    if let Some((text, goes_on)) = conversation.saying() {
        lines.extend(item::saying(text, goes_on, theme, columns, MOST));
    }
    let calling = conversation.calling().iter().filter(|calling| !(hides_agents && calling.tool == AGENT));
    for (at, calling) in calling.enumerate() {
        if at == 0 && lines.is_empty() {
            lines.push(Line::default());
        }
        let mut words = format!("◌ {}", one_line(&calling.title));
        if !calling.progress.is_empty() {
            words.push_str(&format!("  {}", one_line(&calling.progress)));
        }
        lines.push(Line::styled(cut(&words, columns).into_owned(), theme.faint));
    }
    lines
}
