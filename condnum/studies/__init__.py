"""The experiments of the paper and beyond it, and what plans, computes, keeps and resumes their cells."""
