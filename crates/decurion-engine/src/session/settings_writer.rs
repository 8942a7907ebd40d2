//! What a person wants to hold beyond the session. Takes changes that are on record and hold already, has them written
//! into settings beside the session's task, and says what was kept where, or why not.

use std::sync::Arc;

use decurion_protocol::permission::RuleSource;
use decurion_protocol::{Event, Reply, RequestId};
use serde_json::{Value, json};

use crate::ports::Settings;
use crate::session::actor::SessionActor;
use crate::session::rights_changes::{self, Keep};

impl SessionActor {
    /// Writes changes into settings, then answers the command that they came with. The answer to a question does not wait
    /// for that: it stands for the session whatever comes of it.
    pub fn keep(&mut self, request: RequestId, keeps: Vec<Keep>, mut value: Value) {
        if keeps.is_empty() {
            return self.reply(request, Reply::Done { value });
        }
        let settings = Arc::clone(&self.core.parts.settings);
        let (journal, who) = (self.core.journal.clone(), self.core.who.clone());
        self.permissions.keeping.retain(|work| !work.is_finished());
        self.permissions.keeping.push(tokio::spawn(async move {
            let written = tokio::task::spawn_blocking(move || write(&*settings, &keeps)).await;
            let Written { kept, not_kept } = written.unwrap_or_else(|_| Written {
                kept: Vec::new(),
                not_kept: vec!["writing settings failed inside Decurion; this is a bug in it".to_owned()],
            });
            let notice = |level: &str, text: String| Event::Notice { level: level.to_owned(), text };
            let mut events: Vec<Event> = kept.into_iter().map(|text| notice("info", text)).collect();
            events.extend(not_kept.iter().map(|text| notice("warning", text.clone())));
            // A journal that is lost ends the session; what was written is written.
            let _ = journal.write(&who, events).await;
            if !not_kept.is_empty() {
                if !value.is_object() {
                    value = json!({});
                }
                value["not_kept"] = json!(not_kept.join("; "));
            }
            journal.publish(&who, Event::Replied { request, reply: Reply::Done { value } });
        }));
    }

    /// Waits until all that was to be written is, or cannot be.
    pub async fn finish_keeping(&mut self) {
        for work in std::mem::take(&mut self.permissions.keeping) {
            let _ = work.await;
        }
    }
}

struct Written {
    kept: Vec<String>,
    not_kept: Vec<String>,
}

fn write(settings: &dyn Settings, keeps: &[Keep]) -> Written {
    let mut written = Written { kept: Vec::new(), not_kept: Vec::new() };
    for (at, update) in keeps {
        let what = rights_changes::said(update);
        match settings.keep(*at, update) {
            Ok(kept) => {
                let remark = kept.remark.map(|remark| format!(" ({remark})")).unwrap_or_default();
                written.kept.push(format!("kept in {}: {what}{remark}", kept.file));
            }
            Err(reason) => {
                let whose = whose(*at);
                written
                    .not_kept
                    .push(format!("for this session only, not kept in {whose}: {what}: {reason}"));
            }
        }
    }
    written
}

fn whose(at: RuleSource) -> &'static str {
    match at {
        RuleSource::UserSettings => "your settings",
        RuleSource::ProjectSettings => "the project's settings",
        _ => "your settings for this project",
    }
}
