//! Events as short lines for people. Takes envelopes, gives what a person watching wants to know: what the
//! agent does, what came of it, what it waits for.

use decurion_protocol::{Envelope, Event, Message, Role, ToolOutput, WaitReason};

/// How many lines of a result are shown.
const RESULT_LINES: usize = 4;
/// How much of a line is shown.
const LINE_WIDTH: usize = 110;

/// The lines for one event, often none.
pub fn lines(envelope: &Envelope) -> Vec<String> {
    match &envelope.event {
        Event::Message { message, .. } if message.role == Role::Assistant => said(message),
        Event::CallStarted { intent, .. } => vec![format!("● {}", one_line(&intent.title))],
        Event::CallRefused { tool, decision, .. } => {
            vec![format!("✗ {tool} refused: {}", one_line(&decision.reason))]
        }
        Event::CallEnded { output, .. } => result(output),
        Event::Waiting { reason: Some(reason) } => waiting(reason).into_iter().collect(),
        Event::Compacted { tokens_before, .. } => {
            vec![format!("… conversation shortened (was about {tokens_before} tokens)")]
        }
        Event::Notice { text, .. } => vec![format!("! {}", one_line(text))],
        _ => Vec::new(),
    }
}

fn said(message: &Message) -> Vec<String> {
    // The last text is the answer, which is printed by itself.
    let has_calls = message.calls().next().is_some();
    let text = message.text();
    if has_calls && !text.trim().is_empty() { vec![format!("  {}", one_line(&text))] } else { Vec::new() }
}

fn result(output: &ToolOutput) -> Vec<String> {
    let text = output.content.text();
    let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let mut lines: Vec<String> =
        all.iter().take(RESULT_LINES).map(|line| format!("  │ {}", one_line(line))).collect();
    if all.len() > RESULT_LINES {
        lines.push(format!("  │ … {} more lines", all.len() - RESULT_LINES));
    }
    lines
}

fn waiting(reason: &WaitReason) -> Option<String> {
    match reason {
        WaitReason::Retry { attempt, of, delay_ms, error, .. } => {
            let of = of.map(|of| format!(" of {of}")).unwrap_or_default();
            let seconds = delay_ms.div_ceil(1000);
            Some(format!("… try {attempt}{of} in {seconds} s: {}", one_line(error)))
        }
        WaitReason::Turn { ahead } => Some(format!("… waiting for the provider, {ahead} before us")),
        WaitReason::Disk { error } => {
            Some(format!("… disk: session paused, nothing lost, trying again every 2 s ({error})"))
        }
        WaitReason::Compaction => Some("… shortening the conversation".to_owned()),
        WaitReason::Model | WaitReason::Permission { .. } => None,
    }
}

/// Text made safe for a terminal and cut to a line: control characters never reach the screen.
pub fn one_line(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|character| if character == '\n' || character == '\t' { ' ' } else { character })
        .filter(|character| !character.is_control())
        .take(LINE_WIDTH + 1)
        .collect();
    if line.chars().count() > LINE_WIDTH {
        line.chars().take(LINE_WIDTH).chain(['…']).collect()
    } else {
        line
    }
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(one_line("a\u{1b}[31mb\u{7}\r\nc\u{9b}2J"), "a[31mb c2J");
    }
}
