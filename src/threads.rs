//! Work shared between threads that live no longer than the call.
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::error::Result;
use crate::memory;

/// Samples of a long pass, or batches, between two checks.
pub(crate) const BETWEEN_CHECKS: usize = 1 << 14;

/// Asked between parts of the work, on any thread: an error ends the call early.
pub(crate) type Check<'a> = &'a (dyn Fn() -> Result<()> + Sync);

/// Nothing ends the call early.
pub(crate) const NEVER: Check<'_> = &|| Ok(());

/// With fewer samples than this a second thread costs more than it brings.
const MIN_SAMPLES_FOR_THREADS: usize = 1 << 20;

/// How many threads plan `n_samples`, where the caller asked for `threads`.
pub(crate) fn n_threads(threads: Option<usize>, n_samples: usize) -> usize {
    match threads {
        Some(threads) => threads,
        None if n_samples < MIN_SAMPLES_FOR_THREADS => 1,
        None => thread::available_parallelism().map_or(1, usize::from),
    }
}

/// Runs `work` on every task, the last ones first, and returns what it returned in the order of the tasks. Who does
/// which task must change nothing, so each task with randomness has a random stream of its own. No task is begun after
/// one has failed.
pub(crate) fn for_each<T: Send, U: Send>(
    tasks: Vec<T>,
    n_threads: usize,
    check: Check<'_>,
    work: impl Fn(T) -> Result<U> + Sync,
) -> Result<Vec<U>> {
    let work = |task| check().and_then(|()| work(task));
    let n_tasks = tasks.len();
    let n_more = n_threads.min(n_tasks).saturating_sub(1);
    if n_more == 0 {
        return all(n_tasks, tasks.into_iter().map(work));
    }
    let queue = Mutex::new(memory::collect(tasks.into_iter().enumerate())?);
    let done = Mutex::new(memory::with_capacity(n_tasks)?);
    let drain = || {
        while let Some((i, task)) = { queue.lock().unwrap_or_else(PoisonError::into_inner).pop() } {
            let result = work(task);
            if result.is_err() {
                queue.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            done.lock().unwrap_or_else(PoisonError::into_inner).push((i, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..n_more {
            // Where the system has no thread to give, this one does the work.
            if !has_room() || thread::Builder::new().spawn_scoped(scope, drain).is_err() {
                break;
            }
        }
        drain();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|&(i, _)| i);
    all(n_tasks, done.into_iter().map(|(_, result)| result))
}

/// Whether the system has memory for one more thread. glibc ends the process where a thread finds none for its locals.
fn has_room() -> bool {
    // So much never comes from memory that was freed before, which a new thread has no use for.
    const N_BYTES: usize = 64 << 20;
    std::hint::black_box(memory::with_capacity::<u8>(N_BYTES)).is_ok()
}

fn all<U>(n_tasks: usize, results: impl Iterator<Item = Result<U>>) -> Result<Vec<U>> {
    let mut all = memory::with_capacity(n_tasks)?;
    for result in results {
        all.push(result?);
    }
    Ok(all)
}
