"""The embedded run of every experiment, whose tables are kept under `tests/golden`."""

from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
#: Runs that the site of the browser tests shows.
SHOWN = ("house-prices", "digits", "attackers")
#: The words of each run; where files are named, they are in its folder.
RUNS = {
    "house-prices": "run house-prices --data embedded --seeds 2 --steps 60 -j 1",
    "digits": "run mnist --data digits --pairs 4-7,9-0 --seeds 1 --steps 5 -j 1",
    "limits": "run limits --data embedded --seeds 1 -j 1",
    "attackers": "run attackers --data embedded --methods ours,max_rir --attack-steps 1000 "
    "--dense-attack-steps 200 -j 1",
    "reproduction-audit": "run reproduction-audit --data embedded --seeds 1 --epochs 10 --ends 20 -j 1",
    "deep": "run deep --seeds 1 --epochs 1 --limit 40 --backbone test_resnet -j 1",
    "deep-attackers": "run deep-attackers --seeds 1 --epochs 1 --pretrain-epochs 2 --limit 40 --backbone "
    "test_resnet --shots 8 --steps 8 --trials 1 --attackers head-sgd,ridge,trunk,stage-adamw "
    "-j 1",
    "audit": "audit --pretrain P.npy --harmful H.npy --bootstrap 20 --no-attackers",
    "corrections": "run corrections",
}
