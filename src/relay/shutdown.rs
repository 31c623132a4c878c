//! The wish to stop. The first signal asks for an orderly end, the second ends the process at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Tells whoever holds it that the relay is to stop. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown {
    asked: watch::Receiver<bool>,
}

impl Shutdown {
    /// Asked for by whoever holds the sender and sets it to true.
    pub fn when(asked: watch::Receiver<bool>) -> Shutdown {
        Shutdown { asked }
    }

    /// Listens for SIGTERM and SIGINT from now on. Fails where signals cannot be listened for.
    pub fn on_signals() -> std::io::Result<Shutdown> {
        let (sender, asked) = watch::channel(false);
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::spawn(async move {
            for again in [false, true] {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                if again {
                    tracing::warn!(
                        "{name} again: ending at once; rows that were delivered but not confirmed will repeat"
                    );
                    std::process::exit(0);
                }
                tracing::info!("{name}: stopping; a second signal ends at once");
                let _ = sender.send(true);
            }
        });
        Ok(Shutdown { asked })
    }

    /// Resolves when the relay is to stop, at once if it was told before. Cancel-safe.
    pub async fn asked(&mut self) {
        // An error means that nobody will ever ask.
        if self.asked.wait_for(|asked| *asked).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub fn is_asked(&self) -> bool {
        *self.asked.borrow()
    }
}
