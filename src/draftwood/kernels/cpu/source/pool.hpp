// A thread pool that runs one job after another, each divided into pieces.
//
// Threads take pieces as they become free. The caller waits only for pieces that a worker has taken, so a worker that the
// system has descheduled does not delay it. Workers spin for a short time after a job, because the next one usually comes
// within microseconds, and then sleep.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>
#include <sched.h>
#include <unistd.h>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
static inline void cpu_pause() { _mm_pause(); }
#elif defined(__aarch64__)
static inline void cpu_pause() { asm volatile("yield"); }
#else
static inline void cpu_pause() {}
#endif

struct Pool {
  using Piece = void (*)(const void* job, int piece, int worker);

  // state: 24 bits of the job's number, 20 of its pieces, 20 of the next piece. In one word, so that a late worker
  // cannot mistake a piece of one job for a piece of another.
  std::atomic<uint64_t> state{0};
  std::atomic<int> done{0}, asleep{0};
  std::atomic<bool> closing{false};
  Piece run_piece = nullptr;
  const void* job = nullptr;
  uint64_t number = 0;
  std::mutex caller_lock;  // held by the current caller; a second caller runs on its own thread
  std::mutex sleep_lock;
  std::condition_variable wake;
  std::vector<std::thread> workers;
  int spin_us = 100;
  pid_t owner = getpid();

  explicit Pool(int threads, int spin) : spin_us(spin) {
    try {
      for (int i = 1; i < threads; i++) workers.emplace_back([this, i] { work(i); });
    } catch (const std::system_error&) {
      // The system allows no more threads: run with those that started.
    }
  }
  ~Pool() {
    { std::lock_guard<std::mutex> g(sleep_lock); closing = true; }
    wake.notify_all();
    for (auto& h : workers) h.join();
  }

  static uint64_t pack(uint64_t number, uint64_t pieces) { return (number & 0xffffff) << 40 | pieces << 20; }
  static int pieces_of(uint64_t s) { return (int)(s >> 20 & 0xfffff); }
  static int next_of(uint64_t s) { return (int)(s & 0xfffff); }

  bool take(int worker) {
    uint64_t s = state.load(std::memory_order_acquire);
    if (next_of(s) >= pieces_of(s)) return false;
    s = state.fetch_add(1, std::memory_order_acq_rel);
    if (next_of(s) >= pieces_of(s)) return false;
    run_piece(job, next_of(s), worker);
    done.fetch_add(1, std::memory_order_release);
    return true;
  }

  void work(int worker) {
    auto last_work = std::chrono::steady_clock::now();
    for (int spins = 0;; spins++) {
      if (take(worker)) { spins = 0; last_work = std::chrono::steady_clock::now(); continue; }
      cpu_pause();
      if (spins % 64 != 63) continue;
      if (std::chrono::steady_clock::now() - last_work < std::chrono::microseconds(spin_us)) continue;
      std::unique_lock<std::mutex> lock(sleep_lock);
      uint64_t seen = state.load();
      asleep.fetch_add(1);
      wake.wait(lock, [&] { return closing || (state.load() != seen && next_of(state.load()) < pieces_of(state.load())); });
      asleep.fetch_sub(1);
      if (closing) return;
      last_work = std::chrono::steady_clock::now();
    }
  }

  // Only the holder of `caller_lock` calls this.
  void share(Piece piece, const void* what, int pieces) {
    run_piece = piece;
    job = what;
    done.store(0, std::memory_order_relaxed);
    state.store(pack(++number, (uint64_t)pieces), std::memory_order_seq_cst);
    if (asleep.load(std::memory_order_seq_cst) > 0) {
      { std::lock_guard<std::mutex> g(sleep_lock); }
      wake.notify_all();
    }
    while (take(0)) {}
    for (int spins = 0; done.load(std::memory_order_acquire) < pieces; spins++) {
      if (spins < 2000) cpu_pause();
      else sched_yield();  // the worker with the last piece may be waiting for this core
    }
  }
};

// The threads of one call: the whole pool, or the caller alone.
struct Team {
  Pool* pool = nullptr;
  int size = 1;

  template <class Job>
  void each(int pieces, const Job& job) const {
    if (pool == nullptr || pieces < 2) {
      for (int i = 0; i < pieces; i++) job(i, 0);
      return;
    }
    pool->share([](const void* j, int i, int w) { (*static_cast<const Job*>(j))(i, w); }, &job, pieces);
  }
};
