//! Sandboxes as they are compiled. Takes a form and a folder, looks at what is on disk then.

use std::sync::Arc;

use camino::Utf8PathBuf;
use decurion_engine::permission::{Around, Policy};
use decurion_engine::sandbox::{SandboxMaker, SandboxSettings};
use decurion_exec::Form;
use decurion_protocol::{Intent, Mode};

fn maker(form: Form, temporary: Utf8PathBuf) -> SandboxMaker {
    SandboxMaker::new(SandboxSettings {
        form,
        asks_less: false,
        allows_outside: true,
        excluded: Vec::new(),
        writable: Vec::new(),
        hidden: Vec::new(),
        personal: Vec::new(),
        visible: Vec::new(),
        temporary,
        network_open: false,
        unix_sockets: false,
        own: None,
        report: |_| {},
    })
}

#[test]
fn settings_that_do_not_exist_are_held_where_single_files_can_be_protected() {
    for (form, held) in [(Form::Namespaces, true), (Form::Bubblewrap, true), (Form::Landlock, false)] {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let (work, tmp) = (root.join("work"), root.join("tmp"));
        for folder in [&work, &tmp] {
            std::fs::create_dir(folder).unwrap();
        }
        let maker = maker(form, tmp);
        let around = Around { cwd: work.clone(), root: work.clone(), ..Around::default() };
        let policy = Policy::new(Mode::Default, Arc::default(), around);
        let sandbox = maker.compile(&policy, None, &Intent::titled(""), None).unwrap().sandbox.unwrap();
        for name in [".mcp.json", ".claude", ".vscode"] {
            assert_eq!(work.join(name).is_dir(), held, "{form:?}: {name}");
            assert_eq!(sandbox.read_only.contains(&work.join(name).into()), held, "{form:?}: {name}");
        }
        drop(maker);
        assert_eq!(work.read_dir_utf8().unwrap().count(), 0, "{form:?}");
    }
}
