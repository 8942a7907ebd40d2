//! The names of commands. Takes a folder of commands and a file in it, gives what is written behind the slash:
//! `commands/git/push.md` is `git:push`.

use camino::Utf8Path;

/// The name of a command by its place. A file that a plugin names itself stands at the top.
pub(crate) fn name(folder: &Utf8Path, file: &Utf8Path) -> String {
    let below = file.strip_prefix(folder).ok().filter(|below| !below.as_str().is_empty());
    let below = below.or_else(|| file.file_name().map(Utf8Path::new)).unwrap_or(file);
    below.with_extension("").as_str().replace('/', ":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commands_name_is_its_place() {
        for (folder, file, expected) in [
            ("/c", "/c/push.md", "push"),
            ("/c", "/c/git/push.md", "git:push"),
            ("/c", "/c/a/b/c.d.md", "a:b:c.d"),
            ("/c/one.md", "/c/one.md", "one"),
        ] {
            assert_eq!(name(folder.into(), file.into()), expected, "{file}");
        }
    }
}
