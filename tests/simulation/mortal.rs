//! A process that can be killed at any await point, and frozen. Killed means dropped: nothing of it gets a last word.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::time::Instant;

/// What becomes of a process.
#[derive(Default)]
pub struct Fate {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    dead: bool,
    /// It dies after so many more steps.
    steps_left: Option<u64>,
    frozen_until: Option<Instant>,
    waker: Option<Waker>,
}

impl Fate {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn wake(&self) {
        let waker = self.lock().waker.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Dies after so many steps.
    pub fn kill_after(&self, steps: u64) {
        let mut inner = self.lock();
        match steps {
            0 => inner.dead = true,
            _ => inner.steps_left = Some(steps),
        }
        drop(inner);
        self.wake();
    }

    /// Does nothing until then; whoever freezes it wakes it.
    pub fn freeze_until(&self, until: Instant) {
        self.lock().frozen_until = Some(until);
    }

    pub fn frozen_until(&self) -> Option<Instant> {
        self.lock().frozen_until.filter(|until| *until > Instant::now())
    }
}

/// A future that shares this fate. None: it was killed.
pub struct Mortal<F> {
    life: Option<Pin<Box<F>>>,
    fate: Arc<Fate>,
}

impl<F: Future> Mortal<F> {
    pub fn new(life: F, fate: Arc<Fate>) -> Mortal<F> {
        Mortal { life: Some(Box::pin(life)), fate }
    }
}

impl<F: Future> Future for Mortal<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let dead = {
            let mut inner = self.fate.lock();
            inner.waker = Some(cx.waker().clone());
            if inner.frozen_until.is_some_and(|until| until > Instant::now()) {
                return Poll::Pending;
            }
            inner.dead
        };
        if !dead && let Some(life) = &mut self.life {
            if let Poll::Ready(output) = life.as_mut().poll(cx) {
                self.life = None;
                return Poll::Ready(Some(output));
            }
            let mut inner = self.fate.lock();
            let left = inner.steps_left.map(|left| left.saturating_sub(1));
            inner.steps_left = left;
            if left != Some(0) {
                return Poll::Pending;
            }
        }
        self.life = None;
        Poll::Ready(None)
    }
}
