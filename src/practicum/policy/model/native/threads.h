// A handful of threads that share the parts of one kernel at a time.
//
// Part i always does the same work, so results do not depend on timing. Workers spin for some
// microseconds after a job, since the next kernel of a step comes at once, and then sleep.
#pragma once
#include <atomic>
#include <memory>
#include <thread>
#include <unistd.h>
#include <vector>
#include <immintrin.h>

class Threads {
 public:
  explicit Threads(int count) : count_(count), owner_(getpid()) {
    for (int i = 1; i < count; i++) workers_.emplace_back([this, i] { work(i); });
  }
  ~Threads() {
    // A forked child has only the handles, which can neither be joined nor detached: leave them.
    if (getpid() != owner_) { new std::vector<std::thread>(std::move(workers_)); return; }
    stopping_ = true;
    job_number_.fetch_add(1);
    job_number_.notify_all();
    for (auto& worker : workers_) worker.join();
  }
  int count() const { return getpid() == owner_ ? count_ : 1; }  // after a fork there are no workers

  // Call part(i, n) for i in [0, n), each on a thread of its own, and wait for all.
  template <class Part> void run(const Part& part) {
    int n = count();
    if (n == 1) { part(0, 1); return; }
    call_ = [](const void* p, int i, int m) { (*(const Part*)p)(i, m); };
    context_ = &part;
    pending_.store(n - 1, std::memory_order_relaxed);
    job_number_.fetch_add(1, std::memory_order_release);
    job_number_.notify_all();
    part(0, n);
    for (int i = 0; i < SPINS && pending_.load(std::memory_order_acquire); i++) _mm_pause();
    while (int left = pending_.load(std::memory_order_acquire)) pending_.wait(left);  // its core may be taken
  }

  // Call body(begin, end) on contiguous shares of [0, size), cut at multiples of grain.
  template <class Body> void share(int64_t size, int64_t grain, const Body& body) {
    int64_t grains = (size + grain - 1) / grain;
    if (grains <= 1) { if (size > 0) body(0, size); return; }
    run([&](int i, int n) {
      int64_t begin = grains * i / n * grain, end = grains * (i + 1) / n * grain;
      if (end > size) end = size;
      if (begin < end) body(begin, end);
    });
  }

 private:
  static constexpr int SPINS = 1500;  // some tens of microseconds
  void work(int index) {
    unsigned seen = 0;
    for (;;) {
      for (int i = 0; i < SPINS && job_number_.load(std::memory_order_acquire) == seen; i++) _mm_pause();
      job_number_.wait(seen, std::memory_order_acquire);
      seen++;
      if (stopping_) return;
      call_(context_, index, count_);
      if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_all();
    }
  }
  int count_;
  pid_t owner_;
  std::vector<std::thread> workers_;
  std::atomic<unsigned> job_number_{0};
  std::atomic<int> pending_{0};
  std::atomic<bool> stopping_{false};
  void (*call_)(const void*, int, int) = nullptr;
  const void* context_ = nullptr;
};
