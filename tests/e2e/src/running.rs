//! A running container.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use vgpu_test_harness::Bundle;

/// A container that runs in the foreground of a runtime. Its standard input stays open until [`Running::finish`].
#[derive(Debug)]
pub struct Running {
    /// Its id.
    pub id: String,
    /// Its bundle, which is removed with it.
    pub bundle: Bundle,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    delete: Command,
}

impl Running {
    /// Starts a bundle. `runtime` is a command line of a runtime without a subcommand; `bare` is one that can delete the container.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(mut runtime: Command, mut bare: Command, bundle: Bundle) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("vgpu-e2e-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        bundle.write();
        runtime.arg("run").arg("--bundle").arg(bundle.path()).arg(&id);
        let mut child = runtime.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the runtime can be started");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        bare.args(["delete", "--force"]).arg(&id).stdout(Stdio::null()).stderr(Stdio::null());
        Self { input: child.stdin.take(), id, bundle, child, output, delete: bare }
    }

    /// Returns the next line that the container's command writes to stdout; empty at its end.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the container's output can be read");
        line.trim_end().to_owned()
    }

    /// Writes a line to the container's standard input.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input is open");
        writeln!(input, "{line}").expect("the container reads");
    }

    /// Closes the container's standard input, waits for the container, and returns whether it succeeded.
    ///
    /// # Panics
    /// If it cannot be waited for.
    pub fn finish(&mut self) -> bool {
        self.input = None;
        self.child.wait().expect("the container can be waited for").success()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().ok().flatten().is_none() {
            let _ = self.delete.status();
            let _ = self.child.wait();
        }
    }
}
