"""One turn of one policy: what it saw and said becomes tokens, and nothing is judged yet."""

import random

from hypothesis import given
from hypothesis import strategies as st

from fakes import letter_task
from practicum.environment.domains.domain import Limits
from practicum.environment.rollout.play import AttemptKey, play
from practicum.sampling import Completion, Sampling
from practicum.testing import FakePolicy
from practicum.types import Outcome, StopReason, Trajectory, WeightVersion

TASK = letter_task("a")
LIMITS = Limits(max_new_tokens=4, stop=("\n", "."))
KEY = AttemptKey.training(slot=7, sample=3, seed=0)


class Recording(FakePolicy):
    """Writes down with which settings it was asked."""

    asked: Sampling | None = None

    async def generate(self, prompt_ids: object, sampling: Sampling) -> Completion:
        self.asked = sampling
        return await super().generate(prompt_ids, sampling)  # type: ignore[arg-type]


async def played(policy: FakePolicy, key: AttemptKey = KEY) -> Trajectory:
    return await play(TASK, policy, LIMITS, key, temperature=0.7)


async def test_ids_follow_from_slot_and_sample() -> None:
    trajectory = await played(FakePolicy(lambda prompt, rng: "a"))
    assert (trajectory.id, trajectory.group_id) == ("000007-03", "000007")
    assert (trajectory.task_id, trajectory.sample) == (TASK.id, 3)


async def test_only_what_the_policy_said_is_trained_on() -> None:
    policy = FakePolicy(lambda prompt, rng: "xyz")
    policy.publish(WeightVersion(5))
    (segment,) = (await played(policy)).segments
    prompt_ids = policy.render(TASK.prompt)
    num_prompt = len(prompt_ids)
    assert list(segment.token_ids) == prompt_ids + [ord(c) for c in "xyz"]
    assert segment.loss_mask == bytes(num_prompt) + b"\x01\x01\x01"
    assert list(segment.logprobs) == [0.0] * num_prompt + [-1.0] * 3
    assert list(segment.versions) == [0] * num_prompt + [5] * 3


async def test_the_outcome_stays_provisional_and_the_cost_is_recorded() -> None:
    trajectory = await played(FakePolicy(lambda prompt, rng: "wrong, and long"))
    assert (trajectory.outcome, trajectory.failure) == (Outcome.SCORED, None)
    assert trajectory.stop_reason is StopReason.EOS
    assert trajectory.response == "wron", "no more than the domain allows"
    assert trajectory.messages[:-1] == TASK.prompt
    usage = trajectory.usage
    assert (usage.prompt_tokens, usage.sampled_tokens, usage.turns) == (len("say a"), 4, 1)
    assert usage.generate_s > 0.0
    assert usage.verify_s == 0.0


async def test_the_policy_is_asked_with_the_limits_of_the_domain() -> None:
    policy = Recording(lambda prompt, rng: "a")
    await played(policy)
    assert policy.asked == Sampling(
        max_new_tokens=4, temperature=0.7, stop=("\n", "."), seed=KEY.sampling_seed
    )


async def test_a_repeat_says_the_same_and_another_sample_something_else() -> None:
    policy = FakePolicy(lambda prompt, rng: "".join(rng.choices("abcdefgh", k=4)))
    said = [(await played(policy, AttemptKey.training(7, i, 0))).response for i in range(20)]
    again = [(await played(policy, AttemptKey.training(7, i, 0))).response for i in range(20)]
    assert said == again
    assert len(set(said)) > 15


KEYS = st.builds(
    AttemptKey.training, st.integers(0, 10**7), st.integers(0, 200), st.integers(0, 2**63)
)


@given(KEYS, KEYS)
def test_seeds_are_equal_exactly_for_equal_attempts(one: AttemptKey, two: AttemptKey) -> None:
    assert (one.sampling_seed == two.sampling_seed) == (one == two)
    assert 0 <= one.sampling_seed < 2**63
    random.Random(one.sampling_seed)  # any generator takes it
