//! Requests that a provider refuses for good: what the run ends with, and that the conversation stays as it was.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use decurion_model::{BoxStream, Dialect, ModelError, ModelEvent, ModelProvider, ModelRequest, Said};
use decurion_protocol::{Block, Command, Event, OpenSession, Outcome, Place as _, Start};
use decurion_testkit::stage::{Played, Stage, send};
use futures_util::{StreamExt as _, stream};
use serde_json::json;

/// Permanent refusals as providers word them, none of which is about length.
const REFUSALS: [(Dialect, &str, &str); 9] = [
    (
        Dialect::Anthropic,
        "invalid_request_error",
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits.",
    ),
    (
        Dialect::Anthropic,
        "invalid_request_error",
        "tools.12.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12",
    ),
    (Dialect::Anthropic, "invalid_request_error", "thinking.budget_tokens: Extra inputs are not permitted"),
    (Dialect::Anthropic, "invalid_request_error", "Output blocked by content filtering policy"),
    (
        Dialect::Anthropic,
        "invalid_request_error",
        "The long context window beta is not available for this subscription.",
    ),
    (
        Dialect::OpenAiChat,
        "invalid_function_parameters",
        "Invalid schema for function 'lookup': None is not of type 'array'.",
    ),
    (
        Dialect::OpenAiChat,
        "unsupported_parameter",
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    ),
    (
        Dialect::OpenAiChat,
        "content_filter",
        "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
    ),
    (
        Dialect::OpenAiChat,
        "invalid_value",
        "max_tokens is too large: 64000. This model supports at most 16384 completion tokens, whereas you provided 64000.",
    ),
];

fn again(stage: &Stage, played: &Played) -> OpenSession {
    OpenSession { start: Start::Resume { id: played.session, at: None }, ..stage.request.clone() }
}

fn compactions(stage: &Stage, played: &Played) -> usize {
    let is_one = |event: &Event| matches!(event, Event::Compacted { .. });
    stage.recorded(played.session).iter().filter(|envelope| is_one(&envelope.event)).count()
}

fn last_request(stage: &Stage) -> String {
    String::from_utf8(stage.requests().pop().unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_permanent_refusal_ends_the_turn_and_leaves_the_conversation_alone() {
    for (dialect, kind, message) in REFUSALS {
        let mut stage = Stage::new(&format!(
            "when turn=1\n  say \"the bug is in parser.rs line 4711\"\n  call Echo {{\"text\": \"ECHOED\"}}\n\
             when\n  fail 400 type={kind} {}\n",
            json!(message)
        ));
        stage.dialect = dialect;
        let played = stage.play("find the bug").await;
        let Outcome::Failed { error } = &played.outcome else { panic!("{message}: {:?}", played.outcome) };
        assert!(error.contains(message), "{error}");
        assert_eq!(stage.requests().len(), 2, "{message}: nothing else is asked of the provider");
        assert_eq!(compactions(&stage, &played), 0, "{message}");
        let mut stage = stage.resuming("when\n  say \"fixed\"\n");
        stage.dialect = dialect;
        stage.play_all(again(&stage, &played), &["go on"]).await.unwrap();
        let request = last_request(&stage);
        for part in ["find the bug", "parser.rs line 4711", "ECHOED", "go on"] {
            assert!(request.contains(part), "{message}: {part} is missing in {request}");
        }
    }
}

fn picture() -> Block {
    Block::Image { source: json!({"type": "base64", "media_type": "image/png", "data": "QlJPS0VO"}) }
}

/// Prompts with a picture, then with words alone, in one session or in a resumed one.
async fn with_picture(stage: &Stage, request: OpenSession, more: &[&str]) -> Played {
    let mut link = stage.engine().open(request).await.unwrap();
    let mut events = Vec::new();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("look"), picture()] }).await;
    let mut outcome = stage.listen(&mut link, &mut events).await;
    for text in more {
        send(&link, 2, Command::Prompt { blocks: vec![Block::text(*text)] }).await;
        outcome = stage.listen(&mut link, &mut events).await;
    }
    let session = link.session;
    send(&link, 3, Command::Finish).await;
    while let Some(envelope) = link.events.next().await {
        if matches!(&envelope.event, Event::Replied { request, .. } if request.0 == 3) {
            break;
        }
    }
    Played { events, outcome, session }
}

#[tokio::test(start_paused = true)]
async fn a_rejected_picture_is_left_out_once_and_for_all() {
    for dialect in [Dialect::Anthropic, Dialect::OpenAiChat] {
        let mut stage = Stage::new(
            "when match=\"never mind\"\n  say \"fine\"\nwhen match=\"left out\"\n  say \"I cannot see it\"\n\
             when\n  fail 400 \"Could not process image\"\n",
        );
        stage.dialect = dialect;
        let played = with_picture(&stage, stage.request.clone(), &["never mind"]).await;
        assert_eq!(played.outcome, Outcome::Completed { report: "fine".into(), limit: None });
        let holds: Vec<bool> =
            stage.requests().iter().map(|body| String::from_utf8_lossy(body).contains("QlJPS0VO")).collect();
        assert_eq!(holds, [true, false, false]);
        let told = |event: &Event| matches!(event, Event::Notice { text, .. } if text.contains("image"));
        assert!(
            played.events.iter().any(|envelope| told(&envelope.event)),
            "nothing says that it was left out"
        );
        let mut stage = stage.resuming("when\n  say \"still fine\"\n");
        stage.dialect = dialect;
        stage.play_all(again(&stage, &played), &["and now?"]).await.unwrap();
        let request = last_request(&stage);
        assert!(!request.contains("QlJPS0VO") && request.contains("look"), "{request}");
        // A picture that comes later is sent.
        let played = with_picture(&stage, again(&stage, &played), &[]).await;
        assert!(matches!(played.outcome, Outcome::Completed { .. }));
        assert_eq!(last_request(&stage).matches("QlJPS0VO").count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_picture_stays_where_it_was_not_the_reason() {
    let stage = Stage::new(
        "when match=\"again\"\n  say \"I see it\"\nwhen\n  fail 400 \"Your credit balance is too low\"\n",
    );
    let played = with_picture(&stage, stage.request.clone(), &["again"]).await;
    assert_eq!(played.outcome, Outcome::Completed { report: "I see it".into(), limit: None });
    assert!(last_request(&stage).contains("QlJPS0VO"));
}

/// Rejects pictures, and takes no conversation that has not been summarised.
struct Blind {
    inner: Arc<dyn ModelProvider>,
    /// Whether each request held the picture.
    asked: Arc<Mutex<Vec<bool>>>,
    too_long: Arc<AtomicUsize>,
}

impl ModelProvider for Blind {
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let text: String = request
            .messages
            .iter()
            .map(|message| String::from_utf8_lossy(&message.bytes).into_owned())
            .collect();
        self.asked.lock().unwrap().push(text.contains("QlJPS0VO"));
        let said = |message: &str| Said { message: message.to_owned(), ..Said::default() };
        let error = if text.contains("QlJPS0VO") {
            ModelError::Rejected { status: 400, said: said("Could not process image") }
        } else if text.contains("look")
            && !text.contains("SUMMARY")
            && !text.contains("about to be shortened")
        {
            self.too_long.fetch_add(1, Ordering::Relaxed);
            ModelError::TooLong { status: 400, said: said("prompt is too long") }
        } else {
            return self.inner.stream(request);
        };
        stream::once(async { Err(error) }).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_picture_stays_left_out_when_the_conversation_is_compacted() {
    for dialect in [Dialect::Anthropic, Dialect::OpenAiChat] {
        let mut stage = Stage::new(
            "when match=\"about to be shortened\"\n  say \"SUMMARY\"\nwhen match=\"never mind\"\n  say \"fine\"\n\
             when\n  say \"on\"\n",
        );
        stage.dialect = dialect;
        let (asked, too_long) = (Arc::<Mutex<Vec<bool>>>::default(), Arc::<AtomicUsize>::default());
        let (seen, counted) = (Arc::clone(&asked), Arc::clone(&too_long));
        stage.between = Some(Arc::new(move |inner| {
            Arc::new(Blind { inner, asked: Arc::clone(&seen), too_long: Arc::clone(&counted) })
        }));
        let played = stage.play("begin").await;
        assert_eq!(played.outcome, Outcome::Completed { report: "on".into(), limit: None });
        let played = with_picture(&stage, again(&stage, &played), &["never mind"]).await;
        assert_eq!(played.outcome, Outcome::Completed { report: "fine".into(), limit: None });
        assert_eq!((compactions(&stage, &played), too_long.load(Ordering::Relaxed)), (1, 1));
        // "begin", then with the picture, without it, the summary, the shortened conversation, "never mind".
        assert_eq!(*asked.lock().unwrap(), [false, true, false, false, false, false]);
        let summarised =
            stage.recorded(played.session).into_iter().find_map(|envelope| match envelope.event {
                Event::Compacted { kept, .. } => Some(kept),
                _ => None,
            });
        assert_ne!(summarised.unwrap_or_default(), [], "the message with the picture is kept");
    }
}
