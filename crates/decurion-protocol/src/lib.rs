//! The vocabulary every crate shares, in the order the data meets it.
//!
//! Plain data and pure rules only: nothing here does I/O, spawns a task or reads a clock. A front end
//! sends [`Command`]s and reads [`Envelope`]s; everything else in this crate is what those two carry.

pub mod agent;
pub mod answer;
pub mod audit;
pub mod checkpoint;
pub mod choice;
pub mod clock;
pub mod command;
pub mod commands;
pub mod elicitation;
pub mod event;
pub mod hook;
pub mod host;
pub mod id;
pub mod inspect;
pub mod intent;
pub mod link;
pub mod mcp;
pub mod mention;
pub mod message;
pub mod nearest;
pub mod outcome;
pub mod output;
pub mod permission;
pub mod run;
pub mod shell_line;
pub mod size;
pub mod skill;
pub mod step;
pub mod task;
pub mod todo;
pub mod usage;
pub mod view;
pub mod visible;

pub use agent::{AgentDefinition, AgentSandbox, AgentSource, Equipment, ToolSelection};
pub use answer::{Changes, Ruling};
pub use audit::{AuditEntry, AuditKind, DecidedBy, PermissionEntry};
pub use checkpoint::{FileBefore, Rewound};
pub use choice::{Choice, ChoiceOption, Chosen, Subject};
pub use clock::Clock;
pub use command::{Command, Reply, Request, ThinkingChange};
pub use commands::{CommandReceiver, CommandSender, WeakCommandSender};
pub use elicitation::{Elicitation, ElicitationAction, Elicited, Private, Wanted};
pub use event::{
    Charge, ChargeKind, Delta, Denial, Envelope, Event, HookEnding, HookRun, MessageMeta, ModelTotals,
    Origin, SessionInfo, Timing, Totals, Wait, WaitKind, WaitReason,
};
pub use hook::{HookDeclaration, HookEvent, OnFailure};
pub use host::{HostAnswer, HostAsked, HostRequest};
pub use id::{AgentId, CallId, HostRequestId, LineId, QuestionId, RequestId, RunId, SessionId, TaskId};
pub use inspect::{
    ContextKind, ContextPart, ContextUse, Inspected, RulesInForce, TaskOutputEnd, WorkingChanges,
};
pub use intent::{Access, Intent, Overlap, Touch};
pub use link::{Link, OpenSession, Persistence, Place, PlaceError, ResumeAt, SessionSummary, Start};
pub use mcp::{Manifest, Manifests, McpDetail, McpHealth, McpServer, McpSource, McpStatus, McpTransport};
pub use message::{Block, Message, Role, ToolContent};
pub use nearest::nearest;
pub use outcome::Outcome;
pub use output::{ToolEffect, ToolOutput};
pub use permission::{
    Answer, AskedBy, Decision, Mode, PermissionUpdate, Profile, Question, Rule, RuleSet, Verdict,
};
pub use run::{Limits, Opening, OwnRules, Pattern, RunSpec, Thinking, Worktree};
pub use shell_line::{ShellEnding, ShellLine};
pub use skill::{Invocable, Skill, SkillKind};
pub use step::{ReleaseStep, StartStep, Step};
pub use task::{
    Activity, Attention, Delivery, EndingId, Mail, TaskKind, TaskProgress, TaskRecord, TaskState, TaskStep,
};
pub use todo::{Todo, TodoStatus};
pub use usage::{Money, Usage};
pub use view::SessionView;
