//! Why a program could not be executed, in the same words whatever OCI runtime tried.
//!
//! Runtimes tell it in their own words, and clients look for certain ones: those of a shell and
//! of tools written in Go. So what a runtime says of a program is recognised here and told anew;
//! what it says of anything else is passed on as it is.

use std::fmt;

use shim_client::ShimError;

use crate::error::EngineError;

/// What is wrong with a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramFault {
    /// No directory of the container's `PATH` has it.
    NotInPath,
    NoSuchFile,
    NotADirectory,
    PermissionDenied,
}

impl fmt::Display for ProgramFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotInPath => "executable file not found in $PATH",
            Self::NoSuchFile => "no such file or directory",
            Self::NotADirectory => "not a directory",
            Self::PermissionDenied => "permission denied",
        })
    }
}

/// Turns a refusal of the OCI runtime that is about `program` into one that says so.
pub(crate) fn explain(error: ShimError, program: &str) -> EngineError {
    let fault = match &error {
        ShimError::Refused { message, .. } => fault(message, program),
        _ => None,
    };
    match fault {
        Some(fault) => EngineError::Program { program: program.to_owned(), fault },
        None => error.into(),
    }
}

fn fault(said: &str, program: &str) -> Option<ProgramFault> {
    let of_runc = format!("exec: {program:?}: ");
    let of_crun = [format!("executable file `{program}`"), "open executable: ".to_owned()];
    let of_youki = format!("executable '{program}'");
    let marks = of_crun.iter().chain([&of_runc, &of_youki]);
    let cause = marks.filter_map(|mark| Some(said.split_once(mark)?.1)).next()?;
    let cause = cause.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| cause.contains(word));
    Some(match cause {
        _ if has(&["not a directory"]) => ProgramFault::NotADirectory,
        // The latter is what crun says of a directory.
        _ if has(&["permission", "is a directory", "not permitted"]) => {
            ProgramFault::PermissionDenied
        }
        _ if !has(&["not found", "no such file"]) => return None,
        _ if program.contains('/') => ProgramFault::NoSuchFile,
        _ => ProgramFault::NotInPath,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(program: &str, said: &str, want: &str) {
        let refused =
            ShimError::Refused { call: "Start", kind: base::Kind::Internal, message: said.into() };
        assert_eq!(base::Chain(&explain(refused, program)).to_string(), want, "{said}");
    }

    #[test]
    fn runtimes_say_it_in_many_ways() {
        let in_path = "exec: \"no\": executable file not found in $PATH";
        let runc = "runc create: runc create failed: unable to start container process: ";
        check("no", &format!("{runc}exec: \"no\": executable file not found in $PATH"), in_path);
        let crun = "crun exec: executable file `no` not found in $PATH: No such file or directory";
        check("no", crun, in_path);
        check("no", "youki create: executable 'no' not found in $PATH", in_path);

        let missing = "exec: \"/no\": no such file or directory";
        check("/no", &format!("{runc}exec: \"/no\": stat /no: no such file or directory"), missing);
        let crun =
            "crun create: executable file `/no` not found in $PATH: No such file or directory";
        check("/no", crun, missing);
        check("/no", "crun create: executable file `/no` not found: No such file", missing);

        let denied = "exec: \"/no\": permission denied";
        check("/no", &format!("{runc}exec: \"/no\": permission denied"), denied);
        check("/no", &format!("{runc}exec: \"/no\": is a directory"), denied);
        check("/no", "crun create: open executable: Permission denied", denied);
        check("/no", "crun create: open executable: Operation not permitted", denied);

        let on_the_way = "exec: \"/a/b\": not a directory";
        check("/a/b", &format!("{runc}exec: \"/a/b\": stat /a/b: not a directory"), on_the_way);
        check("/a/b", "crun create: open executable: Not a directory", on_the_way);
    }

    #[test]
    fn what_is_not_about_the_program_is_passed_on() {
        for said in [
            "runc create: error mounting \"/no\" to rootfs at \"/x\": no such file or directory",
            "crun create: mount `/no` to `x`: No such file or directory",
            "runc exec: exec: \"/other\": no such file or directory",
            "runc exec: exec: \"/no\": it is too warm",
        ] {
            check("/no", said, &format!("shim: Start: {said}"));
        }
    }
}
