//! Work shared between threads that live no longer than the call.
use std::sync::{Mutex, PoisonError};
use std::thread;

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
/// which task must change nothing, so each task with randomness has a random stream of its own.
pub(crate) fn for_each<T: Send, U: Send>(tasks: Vec<T>, n_threads: usize, work: impl Fn(T) -> U + Sync) -> Vec<U> {
    let n_tasks = tasks.len();
    let n_more = n_threads.min(n_tasks).saturating_sub(1);
    if n_more == 0 {
        return tasks.into_iter().map(work).collect();
    }
    let queue = Mutex::new(tasks.into_iter().enumerate().collect::<Vec<_>>());
    let done = Mutex::new(Vec::with_capacity(n_tasks));
    let drain = || {
        while let Some((i, task)) = { queue.lock().unwrap_or_else(PoisonError::into_inner).pop() } {
            let result = work(task);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((i, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..n_more {
            // Where the system has no thread to give, this one does the work.
            if thread::Builder::new().spawn_scoped(scope, drain).is_err() {
                break;
            }
        }
        drain();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|&(i, _)| i);
    done.into_iter().map(|(_, result)| result).collect()
}
