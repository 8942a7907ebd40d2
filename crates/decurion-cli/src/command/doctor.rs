//! `decurion doctor`: what this installation has. Takes nothing, prints facts with ✓, ! or ✗ and what to do about them.

use std::sync::Arc;

use camino::Utf8Path;
use decurion_config::{Choice, ConfigError, LoadRequest, Loaded, Origin};
use decurion_engine::Models as _;
use decurion_engine::egress::{unusable_host, unusable_secret_host};
use decurion_engine::permission::unknown_tool;
use decurion_exec::Form;
use decurion_model::ModelError;
use decurion_model::http::HttpClient;
use decurion_protocol::Rule;
use serde_json::{Value, json};

use crate::command::proofs::{self, Proof};
use crate::command::run::block_on;
use crate::models::{self, Configured};
use crate::report::{Failure, USAGE, styled_line};
use crate::screen::{OutputTerminal, TextStyle};
use crate::{discover, wire};

pub fn run(json: bool) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let loaded = Arc::new(decurion_config::examine(&LoadRequest::new(cwd, environment.clone()))?);
    let providers: Vec<Value> = loaded
        .providers
        .list()
        .iter()
        .map(
            |provider| json!({"name": provider.name, "kind": provider.kind.name(), "url": provider.base_url}),
        )
        .collect();
    let local = discover::find(loaded.providers.candidates());
    let state = loaded.paths.prepare();
    let model = if loaded.invalid.is_empty() {
        block_on(model(&loaded))?
    } else {
        // Without an address that could not be used, another server would be asked.
        ModelCheck { problem: Some("not tried, because of the settings".to_owned()), ..ModelCheck::default() }
    };
    let proofs = block_on(proofs::run(&loaded, &environment))?;
    let facts = json!({
        "version": wire::VERSION,
        "kernel": kernel(),
        "providers": providers,
        "local": local.as_ref().map(|local| json!({"name": local.name, "url": local.base_url, "model": local.model})),
        "model": model.name,
        "model_problem": model.problem,
        "model_remark": model.remark,
        "state": loaded.paths.state,
        "state_problem": state.as_ref().err().map(ToString::to_string),
        "project": loaded.paths.root,
        "trusted": loaded.trust.is_trusted(),
        "needs_trust": !loaded.project_parts.parts().is_empty(),
        "sandbox": wire::sandbox_name(&loaded),
        "sandbox_problem": wire::sandbox_form(&loaded).err(),
        "sandbox_settings": sandbox_settings(&loaded),
        "sandbox_proofs": proofs.iter().map(Proof::json).collect::<Vec<_>>(),
        "settings_problems": problems(&loaded),
        "warnings": warnings(&loaded),
    });
    if json {
        say!("{facts}");
    } else {
        print_facts(&facts, &loaded, &proofs);
    }
    if !loaded.invalid.is_empty() {
        return Ok(USAGE);
    }
    let lines = lines(&facts, &loaded, &proofs);
    Ok(u8::from(lines.iter().any(|line| line.mark == CheckMark::Bad)))
}

/// Everything in the settings that keeps a session from starting, with its place.
fn problems(loaded: &Loaded) -> Vec<Value> {
    let problem = |error: &ConfigError| {
        let position = error.origin().and_then(Origin::position);
        json!({
            "file": error.file(),
            "line": position.map(|at| at.line),
            "column": position.map(|at| at.column),
            "key": error.key(),
            "problem": error.to_string(),
        })
    };
    loaded.invalid.iter().chain(&loaded.broken).map(problem).collect()
}

/// The version of the kernel; none where it does not say.
fn kernel() -> Option<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(release.trim().to_owned())
}

/// What the settings say about the sandbox, under the names of its keys. What is hidden because it holds a secret is not
/// among it.
fn sandbox_settings(loaded: &Loaded) -> Value {
    let settings = &loaded.settings.sandbox;
    json!({
        "enabled": settings.enabled,
        "required": settings.required,
        "autoAllowBashIfSandboxed": settings.asks_less,
        "allowUnsandboxedCommands": settings.allows_outside,
        "excludedCommands": settings.excluded,
        "filesystem": {"allowWrite": settings.writable, "allowRead": settings.readable},
        "network": {
            "open": settings.network_open,
            "allowedDomains": settings.allowed_hosts,
            "deniedDomains": settings.denied_hosts,
            "allowAllUnixSockets": settings.unix_sockets,
        },
    })
}

/// What a line says about the installation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckMark {
    Good,
    Odd,
    Bad,
}

/// A line for people, with advice below it.
struct DoctorLine {
    mark: CheckMark,
    name: &'static str,
    text: String,
    advice: Vec<String>,
}

impl DoctorLine {
    fn new(mark: CheckMark, name: &'static str, text: impl Into<String>) -> Self {
        Self { mark, name, text: text.into(), advice: Vec::new() }
    }

    fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice.push(advice.into());
        self
    }

    fn print(&self, terminal: OutputTerminal) {
        let (sign, style) = match self.mark {
            CheckMark::Good => ("✓", TextStyle::Good),
            CheckMark::Odd => ("!", TextStyle::Warning),
            CheckMark::Bad => ("✗", TextStyle::Bad),
        };
        let text = format!(" {:<9} {}", self.name, self.text);
        styled_line(&[(style, sign), (TextStyle::Plain, text.trim_end())], terminal.has_colours);
        for advice in &self.advice {
            styled_line(
                &[(TextStyle::Plain, "            "), (TextStyle::Faint, advice)],
                terminal.has_colours,
            );
        }
    }
}

/// The facts, a line each.
fn print_facts(facts: &Value, loaded: &Loaded, proofs: &[Proof]) {
    let terminal = OutputTerminal::look();
    say!("Decurion {}", facts["version"].as_str().unwrap_or_default());
    for line in lines(facts, loaded, proofs) {
        line.print(terminal);
    }
}

fn lines(facts: &Value, loaded: &Loaded, proofs: &[Proof]) -> Vec<DoctorLine> {
    let lines = settings_lines(loaded).into_iter().chain(fact_lines(facts));
    lines.chain(sandbox_lines(loaded, proofs)).collect()
}

/// Every problem of the settings with what to do about it, then what is odd about them.
fn settings_lines(loaded: &Loaded) -> Vec<DoctorLine> {
    let line = |mark: CheckMark, text: String| DoctorLine::new(mark, "Settings", text);
    let mut lines = Vec::new();
    for (problems, advice) in [
        (&loaded.invalid, "No session starts until this is corrected."),
        (
            &loaded.broken,
            "Without this file no session starts here: correct it, or leave it out with --setting-sources user.",
        ),
    ] {
        lines.extend(problems.iter().map(|problem| line(CheckMark::Bad, problem.to_string())));
        if let Some(last) = lines.last_mut().filter(|_| !problems.is_empty()) {
            last.advice.push(advice.to_owned());
        }
    }
    lines.extend(warnings(loaded).into_iter().map(|warning| line(CheckMark::Odd, warning)));
    if lines.is_empty() {
        lines.push(line(CheckMark::Good, "no problems".to_owned()));
    }
    lines
}

/// The model, its providers, the state folder and the project.
fn fact_lines(facts: &Value) -> Vec<DoctorLine> {
    let text = |key: &str| facts[key].as_str();
    let list = |key: &str| facts[key].as_array().map_or(&[][..], Vec::as_slice);
    let mut lines = vec![match (text("model"), text("model_problem")) {
        (Some(model), None) => match text("model_remark") {
            None => DoctorLine::new(CheckMark::Good, "Model", model),
            Some(remark) => DoctorLine::new(CheckMark::Odd, "Model", format!("{model}: {remark}")),
        },
        (Some(model), Some(problem)) => {
            DoctorLine::new(CheckMark::Bad, "Model", format!("{model}: {problem}"))
        }
        (None, problem) => {
            let line = DoctorLine::new(CheckMark::Bad, "Model", problem.unwrap_or("none is configured"));
            if list("providers").is_empty() {
                line.advice("Set ANTHROPIC_API_KEY or OPENAI_API_KEY, start Ollama or llama.cpp, or run `decurion` in a terminal.")
            } else {
                line
            }
        }
    }];
    for provider in list("providers") {
        let part = |key: &str| provider[key].as_str().unwrap_or_default();
        let text = format!("{} ({}, {})", part("name"), part("kind"), part("url"));
        lines.push(DoctorLine::new(CheckMark::Good, "Provider", text));
    }
    if let Some(name) = facts["local"]["name"].as_str() {
        let part = |key: &str| facts["local"][key].as_str().unwrap_or_default();
        let text = format!("{name} on this machine ({}, model {})", part("url"), part("model"));
        lines.push(DoctorLine::new(CheckMark::Good, "Found", text));
    }
    lines.push(match (text("state"), text("state_problem")) {
        (state, Some(problem)) => {
            DoctorLine::new(CheckMark::Bad, "State", format!("{}: {problem}", state.unwrap_or("no folder")))
        }
        (Some(state), None) => {
            DoctorLine::new(CheckMark::Good, "State", format!("{state} (sessions, settings, logs)"))
        }
        (None, None) => DoctorLine::new(CheckMark::Bad, "State", "no home folder, so nothing is kept")
            .advice("Set HOME, or DECURION_HOME to a folder."),
    });
    let project = text("project").unwrap_or_default();
    let is = |key: &str| facts[key] == true;
    lines.push(match (is("trusted"), is("needs_trust")) {
        (true, _) => DoctorLine::new(CheckMark::Good, "Project", format!("{project} (trusted)")),
        (false, false) => {
            DoctorLine::new(CheckMark::Good, "Project", format!("{project} (nothing to trust)"))
        }
        (false, true) => DoctorLine::new(CheckMark::Odd, "Project", format!("{project} (not trusted)"))
            .advice("`decurion trust` shows what its settings would do, and asks."),
    });
    lines
}

/// The sandbox, and each promise about it that was tried just now.
fn sandbox_lines(loaded: &Loaded, proofs: &[Proof]) -> Vec<DoctorLine> {
    let sandbox = |mark: CheckMark, text: String| DoctorLine::new(mark, "Sandbox", text);
    let first = match wire::sandbox_form(loaded) {
        Ok(Form::Landlock) => sandbox(CheckMark::Odd, "on (landlock)".to_owned())
            .advice("It protects less than namespaces; docs/src/sandbox.md says how to get these."),
        Ok(form) => sandbox(CheckMark::Good, format!("on ({})", form.name())),
        Err(reason) if loaded.settings.sandbox.enabled => {
            sandbox(CheckMark::Bad, format!("not available: {reason}"))
                .advice("Commands run with all your rights; docs/src/sandbox.md says what to do.")
        }
        Err(reason) => {
            sandbox(CheckMark::Odd, format!("off ({reason})")).advice("Commands run with all your rights.")
        }
    };
    let proofs = proofs.iter().map(|Proof { promise, held }| match held {
        Ok(true) => DoctorLine::new(CheckMark::Good, "", format!("commands cannot {promise}")),
        Ok(false) => DoctorLine::new(CheckMark::Bad, "", format!("PROBLEM: a command could {promise}"))
            .advice("Please report it with the output of `decurion doctor --json`."),
        Err(reason) => {
            DoctorLine::new(CheckMark::Odd, "", format!("not tried: commands cannot {promise} ({reason})"))
        }
    });
    [first].into_iter().chain(proofs).collect()
}

/// What is wrong with the settings.
pub fn warnings(loaded: &Loaded) -> Vec<String> {
    stops_nothing(loaded).chain(lost_restrictions(loaded)).chain(unusable_secrets(loaded)).collect()
}

/// What is wrong with the settings and stops nothing.
pub fn stops_nothing(loaded: &Loaded) -> impl Iterator<Item = String> {
    let rules = rules_without_tool(loaded).filter(|problem| !problem.is_lost_restriction);
    let rules = rules.map(|problem| problem.text);
    loaded.warnings.iter().map(ToString::to_string).chain(rules).chain(hosts(loaded))
}

/// Rules that would forbid something or ask about it, if the name of their tool were spelled right.
pub fn lost_restrictions(loaded: &Loaded) -> impl Iterator<Item = String> {
    rules_without_tool(loaded).filter(|problem| problem.is_lost_restriction).map(|problem| problem.text)
}

/// A rule without effect.
struct WithoutTool {
    /// Where it is and what is wrong with it.
    text: String,
    /// Whether it was to forbid something or to ask about it, and only the spelling is wrong.
    is_lost_restriction: bool,
}

/// Rules that name no tool, or a path that is not meant, and therefore have no effect.
fn rules_without_tool(loaded: &Loaded) -> impl Iterator<Item = WithoutTool> {
    let rules = &loaded.rules;
    let lists = [
        ("allow", &rules.set.allow, &rules.allow_origins),
        ("ask", &rules.set.ask, &rules.ask_origins),
        ("deny", &rules.set.deny, &rules.deny_origins),
    ];
    lists.into_iter().flat_map(move |(list, rules, origins)| {
        rules.iter().zip(origins).filter_map(move |(rule, origin)| {
            let Some(problem) = unknown_tool(&rule.tool, &[]) else {
                let meant = misplaced(loaded, rule).filter(|_| list == "allow")?;
                let text = format!(
                    "{origin}: the {list} rule {rule} has no effect: `/` begins with the project's folder; for {} \
                     write {}(/{})",
                    meant, rule.tool, meant
                );
                return Some(WithoutTool { text, is_lost_restriction: false });
            };
            let text = format!("{origin}: the {list} rule {rule} has no effect: {problem}");
            Some(WithoutTool { text, is_lost_restriction: list != "allow" && problem.near.is_some() })
        })
    })
}

/// The path of the machine that a rule means whose path begins with one `/`: one that is there, while the project has
/// nothing of the kind.
fn misplaced<'a>(loaded: &Loaded, rule: &'a Rule) -> Option<&'a str> {
    const OF_PATHS: [&str; 6] = ["Read", "Edit", "Write", "Glob", "Grep", "NotebookEdit"];
    let path = rule.specifier.as_deref().filter(|_| OF_PATHS.contains(&rule.tool.as_str()))?;
    let first = path.strip_prefix('/')?.split('/').next().filter(|first| !first.is_empty())?;
    let is_plain = !first.contains(['*', '?', '[', '{']);
    let is_there = |root: &Utf8Path| root.join(first).exists();
    (is_plain && is_there(Utf8Path::new("/")) && !is_there(&loaded.paths.root)).then_some(path)
}

/// Entries of `secrets` that cannot be used.
pub fn unusable_secrets(loaded: &Loaded) -> impl Iterator<Item = String> {
    loaded.settings.secrets.iter().flat_map(|secret| {
        let key = format!("secrets.{}.hosts", secret.name);
        let above = [key.clone(), format!("secrets.{}", secret.name)];
        let origin = above.iter().find_map(|key| loaded.origin(key));
        let empty = || (origin.clone(), key.clone(), "no host is named that may get the secret".to_owned());
        let item = |(index, host): (usize, &String)| {
            let problem = unusable_secret_host(host)?;
            Some((loaded.origin_of_item(&key, index), format!("{key}[{index}]"), problem))
        };
        let unusable: Vec<_> = secret.hosts.iter().enumerate().filter_map(item).collect();
        let all = secret.hosts.is_empty().then(empty).into_iter().chain(unusable);
        let told = all.map(|(origin, key, problem)| {
            let origin = origin.map(|origin| format!("{origin}: ")).unwrap_or_default();
            format!("{origin}{key}: {problem}")
        });
        told.collect::<Vec<_>>()
    })
}

/// Entries of the lists of hosts that cannot be used.
fn hosts(loaded: &Loaded) -> impl Iterator<Item = String> {
    let settings = &loaded.settings.sandbox;
    let lists = [
        ("allowedDomains", &settings.allowed_hosts, "commands cannot reach it"),
        ("deniedDomains", &settings.denied_hosts, "commands reach no host"),
    ];
    lists.into_iter().flat_map(|(key, hosts, effect)| {
        hosts.iter().filter_map(move |host| {
            let problem = unusable_host(host)?;
            let open = if host == "*" { " (`sandbox.network.open` opens the network)" } else { "" };
            Some(format!("sandbox.network.{key}: {problem}{open}; {effect}"))
        })
    })
}

/// The model that a session would use.
#[derive(Default)]
struct ModelCheck {
    name: Option<String>,
    /// What is wrong with it or with its provider.
    problem: Option<String>,
    /// A warning about it.
    remark: Option<String>,
}

async fn model(loaded: &Arc<Loaded>) -> ModelCheck {
    let wrong = |problem: String| ModelCheck { problem: Some(problem), ..ModelCheck::default() };
    let mut models = Configured::new(Arc::clone(loaded), None);
    let provider = match loaded.choice() {
        Ok(Choice::Provider { provider, .. }) => provider,
        Ok(Choice::Scripted { .. }) => {
            return ModelCheck { name: Some(models.default_name()), ..ModelCheck::default() };
        }
        Err(error) => return wrong(error.to_string()),
    };
    let unusable = match models::list(&HttpClient::default(), provider).await {
        // A server that lists nothing may still converse.
        Ok(_) | Err(ModelError::Rejected { .. }) => None,
        Err(error) => Some(format!("provider {:?}: {error}", provider.name)),
    };
    let decided = match models.ask_server().await {
        Ok(()) => models.main(&models.default_name()),
        Err(failure) => Err(failure.message),
    };
    match decided {
        Ok((model, remark)) => ModelCheck { name: Some(model.name.clone()), problem: unusable, remark },
        Err(problem) => wrong(problem),
    }
}
