//! Conversations that are too long for the provider: what is summarised, what is left out and reported, and that
//! nothing is dropped where no summary can be had.

use std::sync::{Arc, Mutex};

use decurion_model::{BoxStream, Dialect, ModelError, ModelEvent, ModelProvider, ModelRequest, Said};
use decurion_protocol::{Block, Command, Event, OpenSession, Outcome, Place as _, Start};
use decurion_testkit::stage::{Played, Stage, send};
use futures_util::StreamExt as _;
use futures_util::stream;

/// Refuses requests of more bytes than it takes, as too long.
struct Narrow {
    inner: Arc<dyn ModelProvider>,
    most: u64,
    refused: Arc<Mutex<Vec<u64>>>,
}

impl ModelProvider for Narrow {
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let bytes = request.len();
        if bytes <= self.most {
            return self.inner.stream(request);
        }
        self.refused.lock().unwrap().push(bytes);
        let said = Said { message: format!("prompt is too long: {bytes}"), ..Said::default() };
        stream::once(async { Err(ModelError::TooLong { status: 400, said }) }).boxed()
    }
}

/// A stage whose provider takes so many bytes, and what that refuses.
fn narrow(script: &str, most: u64) -> (Stage, Arc<Mutex<Vec<u64>>>) {
    let mut stage = Stage::new(script);
    let refused = Arc::<Mutex<Vec<u64>>>::default();
    let seen = Arc::clone(&refused);
    stage.between = Some(Arc::new(move |inner| Arc::new(Narrow { inner, most, refused: Arc::clone(&seen) })));
    (stage, refused)
}

/// Six calls whose results are large and can be told apart; then `end`.
fn six_calls(end: &str) -> String {
    let mut script = String::from("when match=\"about to be shortened\"\n  say \"SUMMARY\"\n");
    for turn in 1..=6 {
        let text = format!("RESULT{turn} {}", "x".repeat(10_000));
        script.push_str(&format!("when turn={turn} first=\"go\"\n  call Poke {{\"text\": \"{text}\"}}\n"));
    }
    script + end
}

fn recorded(stage: &Stage, played: &Played) -> (Vec<String>, Vec<String>) {
    let (mut summaries, mut notices) = (Vec::new(), Vec::new());
    for envelope in stage.recorded(played.session) {
        match envelope.event {
            Event::Compacted { summary, .. } => summaries.push(summary.text()),
            Event::Notice { text, .. } => notices.push(text),
            _ => {}
        }
    }
    (summaries, notices)
}

fn bodies(stage: &Stage) -> Vec<String> {
    stage.requests().into_iter().map(|body| String::from_utf8(body).unwrap()).collect()
}

async fn resume(stage: Stage, played: &Played) -> String {
    let mut stage = stage.resuming("when\n  say \"resumed\"\n");
    stage.between = None;
    let start = Start::Resume { id: played.session, at: None };
    let request = OpenSession { start, ..stage.request.clone() };
    stage.play_all(request, &["and then?"]).await.unwrap();
    bodies(&stage).pop().unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_oldest_results_are_left_out_until_the_summary_fits() {
    for dialect in [Dialect::Anthropic, Dialect::OpenAiChat] {
        let (mut stage, refused) = narrow(&six_calls("when\n  say \"done\"\n"), 90_000);
        stage.dialect = dialect;
        let played = stage.play("go").await;
        assert_eq!(played.outcome, Outcome::Completed { report: "done".into(), limit: None });
        assert_eq!(refused.lock().unwrap().len(), 1, "the shortened conversation is not refused again");
        let bodies = bodies(&stage);
        let asked = bodies.iter().find(|body| body.contains("about to be shortened")).unwrap();
        // Each call says the same in its input and its result.
        assert_eq!(asked.matches("RESULT1 ").count(), 1, "the oldest result is left out");
        assert_eq!(asked.matches("RESULT5 ").count(), 2, "the newest result is there");
        assert!(asked.contains("is left out here"), "{}", &asked[..2_000]);
        let (summaries, notices) = recorded(&stage, &played);
        assert_eq!(summaries.len(), 1);
        assert!(summaries[0].contains("SUMMARY"), "{summaries:?}");
        assert!(notices.iter().any(|text| text.contains("of the oldest tool results")), "{notices:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_at_any_length_leaves_the_conversation_alone() {
    let script = six_calls("when\n  say \"done\"\n");
    let (stage, refused) = narrow(&script, 30_000);
    // From the third call on nothing is short enough, as with an output limit that is larger than the window.
    let shut = Arc::clone(&refused);
    let mut stage = stage;
    stage.between = Some(Arc::new(move |inner| {
        Arc::new(Shut { inner: Narrow { inner, most: 30_000, refused: Arc::clone(&shut) } })
    }));
    let played = stage.play("go").await;
    assert!(
        matches!(&played.outcome, Outcome::Failed { error } if error.contains("too long")),
        "{played:?}",
        played = played.outcome
    );
    assert_eq!(recorded(&stage, &played).0, Vec::<String>::new());
    let request = resume(stage, &played).await;
    assert!(request.contains("RESULT1") && request.contains("and then?"));
    assert!(refused.lock().unwrap().len() < 15);
}

/// Refuses everything once it has refused one request.
struct Shut {
    inner: Narrow,
}

impl ModelProvider for Shut {
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let is_shut = !self.inner.refused.lock().unwrap().is_empty();
        let most = if is_shut { 0 } else { self.inner.most };
        let (inner, refused) = (Arc::clone(&self.inner.inner), Arc::clone(&self.inner.refused));
        Narrow { inner, most, refused }.stream(request)
    }
}

#[tokio::test(start_paused = true)]
async fn a_conversation_without_results_is_summarised_from_its_newest_messages() {
    let long = "y".repeat(9_000);
    let script = "when match=\"about to be shortened\"\n  say \"SUMMARY\"\nwhen\n  say \"noted\"\n";
    let (stage, _) = narrow(script, 40_000);
    let prompts: Vec<String> = (1..=6).map(|number| format!("FACT{number} {long}")).collect();
    let prompts: Vec<&str> = prompts.iter().map(String::as_str).collect();
    let played = stage.play_all(stage.request.clone(), &prompts).await.unwrap();
    assert_eq!(played.outcome, Outcome::Completed { report: "noted".into(), limit: None });
    let (summaries, notices) = recorded(&stage, &played);
    assert_eq!(summaries.len(), 1);
    assert!(summaries[0].contains("SUMMARY") && summaries[0].contains("> FACT5"), "{summaries:?}");
    assert!(notices.iter().any(|text| text.contains("of the oldest messages")), "{notices:?}");
}

#[tokio::test(start_paused = true)]
async fn no_summary_leaves_the_conversation_as_it_was() {
    // The window is nearly full by our estimate; the summary is refused and the turn is not.
    let mut stage = Stage::new(
        "when match=\"about to be shortened\"\n  fail 400 \"Output blocked by content filtering policy\"\n\
         when match=\"second\"\n  say \"still here\"\nwhen\n  say repeat=1500 \"x\"\n  usage input=2000 output=500\n",
    );
    stage.info.window = 5_000;
    let played = stage.play_all(stage.request.clone(), &["first", "second"]).await.unwrap();
    assert_eq!(played.outcome, Outcome::Completed { report: "still here".into(), limit: None });
    assert_eq!(recorded(&stage, &played).0, Vec::<String>::new());
    let request = bodies(&stage).pop().unwrap();
    assert!(request.contains("first") && request.contains("second"), "{request}");
}

#[tokio::test(start_paused = true)]
async fn a_person_hears_why_the_conversation_was_not_shortened() {
    let stage = Stage::new(
        "when match=\"about to be shortened\"\n  fail 400 \"Your credit balance is too low\"\nwhen\n  say \"hi\"\n",
    );
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    let mut events = Vec::new();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("remember me")] }).await;
    stage.listen(&mut link, &mut events).await;
    send(&link, 2, Command::Compact { instructions: None }).await;
    let outcome = stage.listen(&mut link, &mut events).await;
    assert!(matches!(&outcome, Outcome::Failed { error } if error.contains("credit balance")), "{outcome:?}");
    send(&link, 3, Command::Prompt { blocks: vec![Block::text("go on")] }).await;
    stage.listen(&mut link, &mut events).await;
    assert!(bodies(&stage).pop().unwrap().contains("remember me"));
}

#[tokio::test(start_paused = true)]
async fn a_full_window_without_a_summary_keeps_what_the_user_said_and_reports_the_rest() {
    let script = six_calls("when\n  say \"done\"\n").replace("say \"SUMMARY\"", "say \" \"");
    let script = format!("when first=\"could not be summarised\"\n  say \"done\"\n{script}");
    let (stage, _) = narrow(&script, 90_000);
    let played = stage.play("go").await;
    assert_eq!(played.outcome, Outcome::Completed { report: "done".into(), limit: None });
    let (summaries, notices) = recorded(&stage, &played);
    assert!(summaries.len() == 1 && summaries[0].contains("> go"), "{summaries:?}");
    assert!(notices.iter().any(|text| text.contains("wrote no summary")), "{notices:?}");
}
