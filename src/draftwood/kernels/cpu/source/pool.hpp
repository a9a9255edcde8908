// A few threads that share the pieces of one job after another.
//
// A piece belongs to whoever takes it; the caller waits only for pieces that were taken, never for a helper that has
// not come. So a helper that the system has put aside costs its help, not the caller's time. Helpers spin for a short
// while after a job, because the next one is usually there within microseconds, and then sleep.
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
static inline void breathe() { _mm_pause(); }
#else
static inline void breathe() {}
#endif

struct Pool {
  using Piece = void (*)(const void* job, int piece, int worker);

  // state: 24 bits of the job's number, 20 of its pieces, 20 of the next piece. One word, so that a late helper can
  // never take a piece of one job for a piece of another.
  std::atomic<uint64_t> state{0};
  std::atomic<int> done{0}, asleep{0};
  std::atomic<bool> closing{false};
  Piece run_piece = nullptr;
  const void* job = nullptr;
  uint64_t number = 0;
  std::mutex door;  // one caller at a time; a second one works alone
  std::mutex bed;
  std::condition_variable alarm;
  std::vector<std::thread> helpers;
  int spin_us = 100;
  pid_t owner = getpid();

  explicit Pool(int threads, int spin) : spin_us(spin) {
    try {
      for (int i = 1; i < threads; i++) helpers.emplace_back([this, i] { help(i); });
    } catch (const std::system_error&) {
      // The system gives no more threads: those that came will do.
    }
  }
  ~Pool() {
    { std::lock_guard<std::mutex> g(bed); closing = true; }
    alarm.notify_all();
    for (auto& h : helpers) h.join();
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

  void help(int worker) {
    auto idle = std::chrono::steady_clock::now();
    for (int turn = 0;; turn++) {
      if (take(worker)) { turn = 0; idle = std::chrono::steady_clock::now(); continue; }
      breathe();
      if (turn % 64 != 63) continue;
      if (std::chrono::steady_clock::now() - idle < std::chrono::microseconds(spin_us)) continue;
      std::unique_lock<std::mutex> lock(bed);
      uint64_t seen = state.load();
      asleep.fetch_add(1);
      alarm.wait(lock, [&] { return closing || (state.load() != seen && next_of(state.load()) < pieces_of(state.load())); });
      asleep.fetch_sub(1);
      if (closing) return;
      idle = std::chrono::steady_clock::now();
    }
  }

  // Only the holder of `door` calls this.
  void share(Piece piece, const void* what, int pieces) {
    run_piece = piece;
    job = what;
    done.store(0, std::memory_order_relaxed);
    state.store(pack(++number, (uint64_t)pieces), std::memory_order_seq_cst);
    if (asleep.load(std::memory_order_seq_cst) > 0) {
      { std::lock_guard<std::mutex> g(bed); }
      alarm.notify_all();
    }
    while (take(0)) {}
    for (int turn = 0; done.load(std::memory_order_acquire) < pieces; turn++) {
      if (turn < 2000) breathe();
      else sched_yield();  // whoever holds the last piece may be waiting for this very core
    }
  }
};

// What a kernel sees: a team of all threads, or of the caller alone.
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
